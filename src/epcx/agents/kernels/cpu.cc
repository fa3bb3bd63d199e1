// The parts of critics and policies in which a CPU spends its time, forwards and backwards:
//
//   attend   what an agent makes of the entities of one type: two layers for each of them, the
//            agent's attention over those that are there, and LayerNorm
//   embed    what it makes of itself: two layers
//   combine  what it makes of both and of its action: a layer for the action, one for all
//
// Arrays have rows (agent and sample) last; all may have further axes in front, the same ones.
//
//   layers    weight [HIDDEN, features], bias [HIDDEN], weight [SIZE, HIDDEN], bias [SIZE]
//   query     [SIZE, rows]
//   features  [features, slots, rows], mask [slots, rows]
//   encoded   [inputs, rows]
//   actions   [actions, rows]
//
// Nothing that belongs to a pair of row and entity reaches memory: the way back computes it again.
// Rows are taken as many at a time as a vector has lanes. The vectors are those of GCC and Clang,
// as wide as the CPU's registers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

#if defined(__AVX512F__)
constexpr int LANES = 16, SUMS = 16;  // sums that are kept in registers at a time
#elif defined(__AVX__)
constexpr int LANES = 8, SUMS = 8;
#elif defined(__aarch64__)
constexpr int LANES = 4, SUMS = 16;
#else
constexpr int LANES = 4, SUMS = 8;
#endif

constexpr int HIDDEN = EPCX_HIDDEN, SIZE = EPCX_SIZE;
constexpr float EPSILON = EPCX_EPSILON, LOWEST = EPCX_LOWEST;
constexpr int PER_ROW = HIDDEN / LANES;  // vectors of hidden units
constexpr int AT_ONCE = std::max(1, 8 / PER_ROW);  // rows
constexpr int TALL = SUMS / 4;  // rows of a product at a time, of 4 columns
static_assert(HIDDEN % LANES == 0 && SIZE % SUMS == 0 && LANES % AT_ONCE == 0);

#define APART __attribute__((noinline))  // so that all registers are its own

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

inline bool anywhere(Integers mask) {
  int32_t found = 0;
  for (int i = 0; i < LANES; i++) found |= mask[i];
  return found;
}
inline Vector all(float x) { return x - Vector{}; }
// NaN stays NaN in all three: it is how a training that diverges is seen.
inline Vector relu(Vector x) { return x < 0 ? Vector{} : x; }
inline Vector at_most(Vector x, float most) { return x > most ? all(most) : x; }
inline Vector at_least(Vector x, float least) { return x < least ? all(least) : x; }

// e^x for x <= 0, to a unit in the last place or two.
inline Vector exponential(Vector x) {
  x = at_least(x, -87.0f);
  Integers n = __builtin_convertvector(x * 1.44269504f - 0.5f, Integers);
  Vector whole = __builtin_convertvector(n, Vector);
  Vector r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vector y = all(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f})
    y = y * r + c;
  y = y * r * r + r + 1.0f;
  return y * (Vector)((n + 127) << 23);
}

inline Vector inverse_root(Vector x) {
  for (int i = 0; i < LANES; i++) x[i] = 1.0f / std::sqrt(x[i]);
  return x;
}

// Room for numbers, which begins where a vector may; it is kept for the next time.
struct Scratch {
  std::vector<Vector> vectors;

  float* room(int64_t size) {
    if (int64_t(vectors.size()) * LANES < size) vectors.resize((size + LANES - 1) / LANES);
    return reinterpret_cast<float*>(vectors.data());
  }
};

inline float sum(Vector x) {
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

// Some rows of arrays whose last axis they are: as many as there are lanes, or fewer at the end.
template <bool ALL>
struct Rows {
  int64_t total, first;
  int number = LANES;

  Vector load(const float* array, int64_t row) const {
    Vector x{};
    copy(&x, array + row * total + first);
    return x;
  }

  // Where the other array is positive, as the slope before a ReLU.
  Vector load_where(const float* positive, const float* array, int64_t row) const {
    return load(positive, row) > 0 ? load(array, row) : Vector{};
  }

  // Entities lie far apart: the rows that come next would have to be waited for.
  Vector load_and_fetch_next(const float* array, int64_t row) const {
    __builtin_prefetch(array + row * total + first + LANES);
    return load(array, row);
  }

  void store(float* array, int64_t row, Vector x) const {
    copy(array + row * total + first, &x);
  }

  // All ones where the mask holds.
  Integers load(const bool* array, int64_t row) const {
    Bytes mask{};
    copy(&mask, array + row * total + first);
    return -__builtin_convertvector(mask, Integers);
  }

  template <typename To, typename From>
  void copy(To* to, const From* from) const {
    constexpr int each = std::min(sizeof *to, sizeof *from);  // one of them is a vector
    std::memcpy(to, from, each * (ALL ? LANES : number));
  }
};

// `function` of all rows, some at a time.
template <typename Function>
inline void over(int64_t total, Function function) {
  int64_t first = 0;
  for (; first + LANES <= total; first += LANES) function(Rows<true>{total, first});
  if (first < total) function(Rows<false>{total, first, int(total - first)});
}

inline Vector dot(const Vector* a, const Vector* b) {
  Vector sums[4]{};  // a single one would wait for itself
#pragma GCC unroll 16
  for (int j = 0; j < SIZE; j++) sums[j % 4] += a[j] * b[j];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

inline Vector mean(const Vector* x) {
  Vector sum = x[0];
  for (int j = 1; j < SIZE; j++) sum += x[j];
  return sum / float(SIZE);
}

// The weights and biases of two layers, as they come and go.
struct Parameters {
  float *weight, *bias, *second, *last_bias;
};

// Two layers with ReLU after each. Features that are missing are zero.
template <int FEATURES>
struct Layers {
  float first[HIDDEN][FEATURES], first_bias[HIDDEN], second[HIDDEN][SIZE], last_bias[SIZE];
  // The same with hidden units in the lanes:
  Vector by_feature[FEATURES][PER_ROW], bias[PER_ROW], by_output[SIZE][PER_ROW];

  Layers(int features, const Parameters& from) {
    std::memset((void*)this, 0, sizeof *this);
    for (int k = 0; k < HIDDEN; k++) {
      first_bias[k] = bias[k / LANES][k % LANES] = from.bias[k];
      for (int f = 0; f < features; f++)
        first[k][f] = by_feature[f][k / LANES][k % LANES] = from.weight[k * features + f];
      for (int j = 0; j < SIZE; j++)
        second[k][j] = by_output[j][k / LANES][k % LANES] = from.second[j * HIDDEN + k];
    }
    std::copy_n(from.last_bias, SIZE, last_bias);
  }

  APART void embed(const Vector* x, Vector* embedded) const {
    Vector hidden[HIDDEN];
#pragma GCC unroll 8
    for (int k = 0; k < HIDDEN; k++) {
      Vector sum = all(first_bias[k]);
      for (int f = 0; f < FEATURES; f++) sum += x[f] * first[k][f];
      hidden[k] = relu(sum);
    }
    for (int begin = 0; begin < SIZE; begin += SUMS) {
      Vector sums[SUMS];
#pragma GCC unroll 16
      for (int j = 0; j < SUMS; j++) sums[j] = all(last_bias[begin + j]);
      for (int k = 0; k < HIDDEN; k++) {
#pragma GCC unroll 16
        for (int j = 0; j < SUMS; j++) sums[j] += hidden[k] * second[k][begin + j];
      }
#pragma GCC unroll 16
      for (int j = 0; j < SUMS; j++) embedded[begin + j] = relu(sums[j]);
    }
  }
};

// Sums over rows of what they add to the gradients of the layers.
template <int FEATURES>
struct Gradient {
  Vector by_feature[FEATURES][PER_ROW], bias[PER_ROW], by_output[SIZE][PER_ROW];
  Vector last_bias[SIZE];

  Gradient() { std::memset((void*)this, 0, sizeof *this); }

  // `slope` is that of the embedding before its ReLU.
  APART void add(const Layers<FEATURES>& layers, const Vector* x, const Vector* slope) {
    Vector hidden[LANES][PER_ROW], to_hidden[LANES][PER_ROW];
    for (int first = 0; first < LANES; first += AT_ONCE) {
      Vector sums[AT_ONCE][PER_ROW];
#pragma GCC unroll 4
      for (int r = 0; r < AT_ONCE; r++)
#pragma GCC unroll 8
        for (int p = 0; p < PER_ROW; p++) {
          Vector sum = layers.bias[p];
#pragma GCC unroll 8
          for (int f = 0; f < FEATURES; f++) sum += layers.by_feature[f][p] * x[f][first + r];
          hidden[first + r][p] = relu(sum);
          sums[r][p] = Vector{};
        }
      for (int j = 0; j < SIZE; j++)
#pragma GCC unroll 4
        for (int r = 0; r < AT_ONCE; r++)
#pragma GCC unroll 8
          for (int p = 0; p < PER_ROW; p++)
            sums[r][p] += layers.by_output[j][p] * slope[j][first + r];
#pragma GCC unroll 4
      for (int r = 0; r < AT_ONCE; r++)
#pragma GCC unroll 8
        for (int p = 0; p < PER_ROW; p++)
          to_hidden[first + r][p] = hidden[first + r][p] > 0 ? sums[r][p] : Vector{};
    }
    accumulate<FEATURES>(by_feature, x, to_hidden);
    accumulate<SIZE>(by_output, slope, hidden);
    for (int r = 0; r < LANES; r++)
      for (int p = 0; p < PER_ROW; p++) bias[p] += to_hidden[r][p];
    for (int j = 0; j < SIZE; j++) last_bias[j] += slope[j];
  }

  // sums[i] += sum over rows of left[i] and right.
  template <int NUMBER>
  static void accumulate(Vector (*sums)[PER_ROW], const Vector* left,
                         const Vector (*right)[PER_ROW]) {
    constexpr int STEP = std::min(NUMBER, SUMS / PER_ROW);
    for (int begin = 0; begin < NUMBER; begin += STEP) {
      Vector local[STEP][PER_ROW];
#pragma GCC unroll 16
      for (int i = 0; i < STEP; i++)
#pragma GCC unroll 8
        for (int p = 0; p < PER_ROW; p++) local[i][p] = sums[begin + i][p];
      for (int r = 0; r < LANES; r++)
#pragma GCC unroll 16
        for (int i = 0; i < STEP; i++)
#pragma GCC unroll 8
          for (int p = 0; p < PER_ROW; p++) local[i][p] += right[r][p] * left[begin + i][r];
#pragma GCC unroll 16
      for (int i = 0; i < STEP; i++)
#pragma GCC unroll 8
        for (int p = 0; p < PER_ROW; p++) sums[begin + i][p] = local[i][p];
    }
  }

  void store(int features, const Parameters& to) const {
    for (int k = 0; k < HIDDEN; k++) {
      to.bias[k] = bias[k / LANES][k % LANES];
      for (int f = 0; f < features; f++)
        to.weight[k * features + f] = by_feature[f][k / LANES][k % LANES];
      for (int j = 0; j < SIZE; j++)
        to.second[j * HIDDEN + k] = by_output[j][k / LANES][k % LANES];
    }
    for (int j = 0; j < SIZE; j++) to.last_bias[j] = sum(last_bias[j]);
  }
};

const float SCALE = 1.0f / std::sqrt(float(SIZE));

struct Entities {
  int64_t features, slots, rows;
  const float *query, *values;
  const bool* mask;
};

template <int FEATURES>
void attend_forwards(const Parameters& parameters, const Entities& seen, float* normal,
                     float* kept) {
  const Layers<FEATURES> layers(seen.features, parameters);
  std::vector<Vector> embedded(seen.slots * SIZE), scores(seen.slots);
  std::vector<Integers> masks(seen.slots);
  over(seen.rows, [&](auto rows) {
    Vector query[SIZE], x[FEATURES]{}, highest = all(LOWEST);
    for (int j = 0; j < SIZE; j++) query[j] = rows.load(seen.query, j) * SCALE;
    int64_t present = 0;  // for one of the rows at least
    for (int64_t s = 0; s < seen.slots; s++) {
      const Integers mask = masks[present] = rows.load(seen.mask, s);
      if (!anywhere(mask)) continue;
      for (int f = 0; f < seen.features; f++)
        x[f] = rows.load_and_fetch_next(seen.values, f * seen.slots + s);
      layers.embed(x, &embedded[present * SIZE]);
      Vector score = dot(query, &embedded[present * SIZE]);
      highest = mask & (score > highest) ? score : highest;
      scores[present++] = score;
    }
    Vector total{}, mixed[SIZE]{};
    for (int64_t s = 0; s < present; s++) {
      Vector weight = masks[s] ? exponential(at_most(scores[s] - highest, 0)) : Vector{};
      total += weight;
      for (int j = 0; j < SIZE; j++) mixed[j] += weight * embedded[s * SIZE + j];
    }
    Vector inverse = 1.0f / at_least(total, 1e-30f);
    for (int j = 0; j < SIZE; j++) mixed[j] *= inverse;
    Vector centre = mean(mixed);
    for (int j = 0; j < SIZE; j++) mixed[j] -= centre;
    Vector rate = inverse_root(dot(mixed, mixed) / float(SIZE) + EPSILON);
    for (int j = 0; j < SIZE; j++) rows.store(normal, j, mixed[j] * rate);
    rows.store(kept, 0, highest);
    rows.store(kept, 1, inverse);
    rows.store(kept, 2, rate);
  });
}

template <int FEATURES>
void attend_backwards(const Parameters& parameters, const Entities& seen, const float* normals,
                      const float* kept, const float* slopes, const Parameters& gradients,
                      float* to_query) {
  const Layers<FEATURES> layers(seen.features, parameters);
  Gradient<FEATURES> gradient;
  over(seen.rows, [&](auto rows) {
    Vector query[SIZE], normal[SIZE], to_mixed[SIZE], to_queries[SIZE]{}, x[FEATURES]{};
    for (int j = 0; j < SIZE; j++) {
      query[j] = rows.load(seen.query, j) * SCALE;
      normal[j] = rows.load(normals, j);
      to_mixed[j] = rows.load(slopes, j);
    }
    const Vector highest = rows.load(kept, 0), inverse = rows.load(kept, 1);
    const Vector rate = rows.load(kept, 2);
    const Vector centre = mean(to_mixed), along = dot(to_mixed, normal) / float(SIZE);
    for (int j = 0; j < SIZE; j++) to_mixed[j] = rate * (to_mixed[j] - centre - normal[j] * along);
    // The weighted mean, over the entities, of the slopes of their weights.
    const Vector average = dot(to_mixed, normal) / rate;
    for (int64_t s = 0; s < seen.slots; s++) {
      const Integers mask = rows.load(seen.mask, s);
      if (!anywhere(mask)) continue;
      for (int f = 0; f < seen.features; f++)
        x[f] = rows.load_and_fetch_next(seen.values, f * seen.slots + s);
      Vector embedded[SIZE], slope[SIZE];
      layers.embed(x, embedded);
      // Huge scores that round differently here must not make a weight above one.
      Vector above = at_most(dot(query, embedded) - highest, 0);
      Vector weight = mask ? exponential(above) * inverse : Vector{};
      Vector to_score = mask ? weight * (dot(to_mixed, embedded) - average) : Vector{};
      for (int j = 0; j < SIZE; j++) {
        to_queries[j] += to_score * embedded[j];
        Vector to_embedded = weight * to_mixed[j] + to_score * query[j];
        slope[j] = embedded[j] > 0 ? to_embedded : Vector{};
      }
      gradient.add(layers, x, slope);
    }
    for (int j = 0; j < SIZE; j++) rows.store(to_query, j, to_queries[j] * SCALE);
  });
  gradient.store(seen.features, gradients);
}

template <int FEATURES>
void embed_forwards(int64_t features, int64_t number, const Parameters& parameters,
                    const float* values, float* embedded) {
  const Layers<FEATURES> layers(features, parameters);
  over(number, [&](auto rows) {
    Vector x[FEATURES]{}, y[SIZE];
    for (int f = 0; f < features; f++) x[f] = rows.load(values, f);
    layers.embed(x, y);
    for (int j = 0; j < SIZE; j++) rows.store(embedded, j, y[j]);
  });
}

template <int FEATURES>
void embed_backwards(int64_t features, int64_t number, const Parameters& parameters,
                     const float* values, const float* embedded, const float* slopes,
                     const Parameters& gradients) {
  const Layers<FEATURES> layers(features, parameters);
  Gradient<FEATURES> gradient;
  over(number, [&](auto rows) {
    Vector x[FEATURES]{}, slope[SIZE];
    for (int f = 0; f < features; f++) x[f] = rows.load(values, f);
    for (int j = 0; j < SIZE; j++) slope[j] = rows.load_where(embedded, slopes, j);
    gradient.add(layers, x, slope);
  });
  gradient.store(features, gradients);
}

// Some rows of `left` times some of `right`, turned, summed over their columns; see below.
template <int WIDE>
void multiply_block(int64_t rows, const float* left, const float* right, float* product,
                    int64_t width) {
  Vector sums[TALL][WIDE]{};
  over(rows, [&](auto some) {
    Vector x[WIDE];
#pragma GCC unroll 4
    for (int i = 0; i < WIDE; i++) x[i] = some.load(right, i);
#pragma GCC unroll 4
    for (int j = 0; j < TALL; j++) {
      const Vector y = some.load(left, j);
#pragma GCC unroll 4
      for (int i = 0; i < WIDE; i++) sums[j][i] += y * x[i];
    }
  });
  for (int j = 0; j < TALL; j++)
    for (int i = 0; i < WIDE; i++) product[j * width + i] = sum(sums[j][i]);
}

// left [SIZE, rows] times right [number, rows] turned, into columns of an array so wide.
void multiply(int64_t rows, const float* left, int64_t number, const float* right, float* product,
              int64_t width) {
  int64_t i = 0;
  for (; i + 4 <= number; i += 4)
    for (int j = 0; j < SIZE; j += TALL)
      multiply_block<4>(rows, left + j * rows, right + i * rows, product + j * width + i, width);
  for (; i < number; i++)
    for (int j = 0; j < SIZE; j += TALL)
      multiply_block<1>(rows, left + j * rows, right + i * rows, product + j * width + i, width);
}

// relu(weight [encoded, relu(first actions + bias)] + bias).
struct Combination {
  int64_t inputs, actions, rows;
  const float *first, *first_bias, *weight, *bias, *encoded, *chosen;

  int64_t width() const { return inputs + SIZE; }

  template <typename Some>
  void act(Some some, Vector* acted) const {
    for (int j = 0; j < SIZE; j++) acted[j] = all(first_bias[j]);
    for (int64_t i = 0; i < actions; i++) {
      const Vector action = some.load(chosen, i);
      for (int j = 0; j < SIZE; j++) acted[j] += action * first[j * actions + i];
    }
    for (int j = 0; j < SIZE; j++) acted[j] = relu(acted[j]);
  }

  void forwards(float* combined) const {
    std::vector<float> turned(width() * SIZE);
    for (int64_t i = 0; i < width(); i++)
      for (int j = 0; j < SIZE; j++) turned[i * SIZE + j] = weight[j * width() + i];
    std::vector<Vector> x(width());
    over(rows, [&](auto some) {
      for (int64_t i = 0; i < inputs; i++) x[i] = some.load(encoded, i);
      act(some, &x[inputs]);
      for (int begin = 0; begin < SIZE; begin += SUMS) {
        Vector sums[SUMS];
#pragma GCC unroll 16
        for (int j = 0; j < SUMS; j++) sums[j] = all(bias[begin + j]);
        const float* weights = &turned[begin];
        for (int64_t i = 0; i < width(); i++, weights += SIZE)
#pragma GCC unroll 16
          for (int j = 0; j < SUMS; j++) sums[j] += x[i] * weights[j];
#pragma GCC unroll 16
        for (int j = 0; j < SUMS; j++) some.store(combined, begin + j, relu(sums[j]));
      }
    });
  }

  void backwards(const float* combined, const float* slopes, float* to_first, float* to_first_bias,
                 float* to_weight, float* to_bias, float* to_encoded, float* to_actions) const {
    // Of all rows, as factors of the gradients.
    static thread_local Scratch scratch;
    float* acted = scratch.room(3 * SIZE * rows);
    float *to_acted = acted + SIZE * rows, *slope = to_acted + SIZE * rows;
    Vector to_biases[SIZE]{}, to_first_biases[SIZE]{};
    over(rows, [&](auto some) {
      Vector x[SIZE];
      act(some, x);
      for (int j = 0; j < SIZE; j++) {
        const Vector y = some.load_where(combined, slopes, j);
        to_biases[j] += y;
        some.store(slope, j, y);
        some.store(acted, j, x[j]);
      }
    });
    for (int64_t i = 0; i < inputs; i += STEP) step_back(slope, i, to_encoded + i * rows);
    for (int64_t i = 0; i < SIZE; i += STEP) step_back(slope, inputs + i, to_acted + i * rows);
    over(rows, [&](auto some) {
      Vector y[SIZE];
      for (int j = 0; j < SIZE; j++) {
        y[j] = some.load_where(acted, to_acted, j);
        to_first_biases[j] += y[j];
        some.store(to_acted, j, y[j]);
      }
      for (int64_t i = 0; i < actions; i++) {
        Vector total{};
        for (int j = 0; j < SIZE; j++) total += y[j] * first[j * actions + i];
        some.store(to_actions, i, total);
      }
    });
    multiply(rows, slope, inputs, encoded, to_weight, width());
    multiply(rows, slope, SIZE, acted, to_weight + inputs, width());
    multiply(rows, to_acted, actions, chosen, to_first, actions);
    for (int j = 0; j < SIZE; j++) {
      to_bias[j] = sum(to_biases[j]);
      to_first_bias[j] = sum(to_first_biases[j]);
    }
  }

  // From slopes of what comes out to those of some of what goes in.
  void step_back(const float* slope, int64_t i, float* to_inputs) const {
    float weights[SIZE][STEP];
    for (int j = 0; j < SIZE; j++) std::copy_n(weight + j * width() + i, STEP, weights[j]);
    over(rows, [&](auto some) {
      Vector sums[STEP]{};
#pragma GCC unroll 16
      for (int j = 0; j < SIZE; j++) {
        const Vector y = some.load(slope, j);
#pragma GCC unroll 8
        for (int k = 0; k < STEP; k++) sums[k] += y * weights[j][k];
      }
#pragma GCC unroll 8
      for (int k = 0; k < STEP; k++) some.store(to_inputs, k, sums[k]);
    });
  }

  static constexpr int STEP = 8;
  static_assert(SIZE % STEP == 0);
};

// What XLA calls

using Floats = ffi::Buffer<ffi::F32>;
using Bools = ffi::Buffer<ffi::PRED>;
using Result = ffi::Result<Floats>;

// Arrays behind each other: how many there are, of which the last axes are alike.
int64_t count(const Floats& array, int axes) {
  int64_t number = 1;
  for (size_t i = 0; i + axes < array.dimensions().size(); i++) number *= array.dimensions()[i];
  return number;
}

int64_t size(const Floats& array, int axis_from_the_end) {
  return array.dimensions()[array.dimensions().size() - axis_from_the_end];
}

// One of them.
struct One {
  int64_t number, total;

  template <typename Buffer>
  auto operator()(const Buffer& buffer) const {
    return buffer.typed_data() + buffer.element_count() / total * number;
  }
  float* operator()(Result& result) const { return (*this)(*result); }
};

template <typename Function>
ffi::Error each(int64_t total, Function function) {
  for (int64_t i = 0; i < total; i++) function(One{i, total});
  return ffi::Error::Success();
}

#define BY_FEATURES(number, function) \
  ((number) <= 2 ? function<2> : (number) <= 4 ? function<4> : function<8>)

ffi::Error attend_all_forwards(Floats weight, Floats bias, Floats second, Floats last_bias,
                               Floats query, Floats features, Bools mask, Result normal,
                               Result kept) {
  const int64_t sizes[] = {size(features, 3), size(features, 2), size(features, 1)};
  auto run = BY_FEATURES(sizes[0], attend_forwards);
  return each(count(features, 3), [&](One of) {
    run({of(weight), of(bias), of(second), of(last_bias)},
        {sizes[0], sizes[1], sizes[2], of(query), of(features), of(mask)}, of(normal), of(kept));
  });
}

ffi::Error attend_all_backwards(Floats weight, Floats bias, Floats second, Floats last_bias,
                                Floats query, Floats features, Bools mask, Floats normal,
                                Floats kept, Floats slope, Result to_weight, Result to_bias,
                                Result to_second, Result to_last_bias, Result to_query) {
  const int64_t sizes[] = {size(features, 3), size(features, 2), size(features, 1)};
  auto run = BY_FEATURES(sizes[0], attend_backwards);
  return each(count(features, 3), [&](One of) {
    run({of(weight), of(bias), of(second), of(last_bias)},
        {sizes[0], sizes[1], sizes[2], of(query), of(features), of(mask)}, of(normal), of(kept),
        of(slope), {of(to_weight), of(to_bias), of(to_second), of(to_last_bias)}, of(to_query));
  });
}

ffi::Error embed_all_forwards(Floats weight, Floats bias, Floats second, Floats last_bias,
                              Floats features, Result embedded) {
  auto run = BY_FEATURES(size(features, 2), embed_forwards);
  return each(count(features, 2), [&](One of) {
    run(size(features, 2), size(features, 1),
        {of(weight), of(bias), of(second), of(last_bias)}, of(features), of(embedded));
  });
}

ffi::Error embed_all_backwards(Floats weight, Floats bias, Floats second, Floats last_bias,
                               Floats features, Floats embedded, Floats slope, Result to_weight,
                               Result to_bias, Result to_second, Result to_last_bias) {
  auto run = BY_FEATURES(size(features, 2), embed_backwards);
  return each(count(features, 2), [&](One of) {
    run(size(features, 2), size(features, 1),
        {of(weight), of(bias), of(second), of(last_bias)}, of(features), of(embedded), of(slope),
        {of(to_weight), of(to_bias), of(to_second), of(to_last_bias)});
  });
}

ffi::Error combine_all_forwards(Floats first, Floats first_bias, Floats weight, Floats bias,
                                Floats encoded, Floats actions, Result combined) {
  return each(count(encoded, 2), [&](One of) {
    Combination{size(encoded, 2), size(actions, 2), size(encoded, 1), of(first), of(first_bias),
                of(weight),       of(bias),         of(encoded),      of(actions)}
        .forwards(of(combined));
  });
}

ffi::Error combine_all_backwards(Floats first, Floats first_bias, Floats weight, Floats bias,
                                 Floats encoded, Floats actions, Floats combined, Floats slope,
                                 Result to_first, Result to_first_bias, Result to_weight,
                                 Result to_bias, Result to_encoded, Result to_actions) {
  return each(count(encoded, 2), [&](One of) {
    Combination{size(encoded, 2), size(actions, 2), size(encoded, 1), of(first), of(first_bias),
                of(weight),       of(bias),         of(encoded),      of(actions)}
        .backwards(of(combined), of(slope), of(to_first), of(to_first_bias), of(to_weight),
                   of(to_bias), of(to_encoded), of(to_actions));
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_attend_forwards, attend_all_forwards);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_attend_backwards, attend_all_backwards);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_embed_forwards, embed_all_forwards);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_embed_backwards, embed_all_backwards);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_combine_forwards, combine_all_forwards);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_combine_backwards, combine_all_backwards);
