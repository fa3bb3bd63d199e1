// What an agent makes of the entities of one type, for CPUs: two layers for each of them, the
// agent's attention over those that are there, and LayerNorm; forwards, and backwards.
//
//   layers    weight [HIDDEN, features], bias [HIDDEN], weight [SIZE, HIDDEN], bias [SIZE]
//   query     [SIZE, rows]
//   features  [features, slots, rows], mask [slots, rows]
//   normal    [SIZE, rows]
//   kept      [3, rows]: what the way back needs to know of softmax and LayerNorm
//
// Every array may have further axes in front, the same for all. Nothing that belongs to a pair of
// row and entity reaches memory: the way back computes it again. Rows are taken as many at a time
// as a vector has lanes; only gradients of weights, which are sums over rows, have hidden units in
// the lanes instead.
//
// The vectors are those of GCC and Clang, as wide as the CPU's registers.

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
static_assert(HIDDEN % LANES == 0 && SIZE % SUMS == 0 && LANES % AT_ONCE == 0);

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

// Some rows of an array whose last axis they are.
struct Rows {
  int64_t total, first;
  int number;  // LANES, or fewer at the end

  Vector load(const float* array, int64_t row) const {
    Vector x{};
    copy(&x, array + row * total + first);
    return x;
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
    if (number == LANES)
      std::memcpy(to, from, each * LANES);
    else
      for (int i = 0; i < number * each; i++) ((char*)to)[i] = ((const char*)from)[i];
  }
};

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

// Two layers with ReLU after each. FEATURES is even: one that is missing is zero.
template <int FEATURES>
struct Layers {
  float first[HIDDEN][FEATURES], first_bias[HIDDEN], second[HIDDEN][SIZE], last_bias[SIZE];
  // The same with hidden units in the lanes:
  Vector by_feature[FEATURES][PER_ROW], bias[PER_ROW], by_output[SIZE][PER_ROW];

  Layers(int features, const float* weight, const float* bias, const float* second,
         const float* last_bias) {
    std::memset((void*)this, 0, sizeof *this);
    for (int k = 0; k < HIDDEN; k++) {
      first_bias[k] = this->bias[k / LANES][k % LANES] = bias[k];
      for (int f = 0; f < features; f++)
        first[k][f] = by_feature[f][k / LANES][k % LANES] = weight[k * features + f];
      for (int j = 0; j < SIZE; j++)
        this->second[k][j] = by_output[j][k / LANES][k % LANES] = second[j * HIDDEN + k];
    }
    std::copy_n(last_bias, SIZE, this->last_bias);
  }

  __attribute__((noinline)) void embed(const Vector* x, Vector* embedded) const {
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
  __attribute__((noinline)) void add(const Layers<FEATURES>& layers, const Vector* x, const Vector* slope) {
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

  void store(int features, float* weight, float* bias, float* second, float* last_bias) const {
    for (int k = 0; k < HIDDEN; k++) {
      bias[k] = this->bias[k / LANES][k % LANES];
      for (int f = 0; f < features; f++)
        weight[k * features + f] = by_feature[f][k / LANES][k % LANES];
      for (int j = 0; j < SIZE; j++)
        second[j * HIDDEN + k] = by_output[j][k / LANES][k % LANES];
    }
    for (int j = 0; j < SIZE; j++) {
      last_bias[j] = 0;
      for (int i = 0; i < LANES; i++) last_bias[j] += this->last_bias[j][i];
    }
  }
};

struct Shape {
  int64_t batch, features, slots, rows;
};

// The arrays of one network, of those along the axes in front.
struct Network {
  const float *weight, *bias, *second, *last_bias, *query, *features;
  const bool* mask;
};

const float SCALE = 1.0f / std::sqrt(float(SIZE));

template <int FEATURES>
void forwards(const Shape& shape, const Network& n, float* normal, float* kept) {
  const Layers<FEATURES> layers(shape.features, n.weight, n.bias, n.second, n.last_bias);
  std::vector<Vector> embedded(shape.slots * SIZE), scores(shape.slots);
  std::vector<Integers> masks(shape.slots);
  for (int64_t first = 0; first < shape.rows; first += LANES) {
    const Rows rows{shape.rows, first, int(std::min<int64_t>(LANES, shape.rows - first))};
    Vector query[SIZE], x[FEATURES]{}, highest = all(LOWEST);
    for (int j = 0; j < SIZE; j++) query[j] = rows.load(n.query, j) * SCALE;
    int64_t present = 0;  // for one of the rows at least
    for (int64_t s = 0; s < shape.slots; s++) {
      const Integers mask = masks[present] = rows.load(n.mask, s);
      if (!anywhere(mask)) continue;
      for (int f = 0; f < shape.features; f++)
        x[f] = rows.load_and_fetch_next(n.features, f * shape.slots + s);
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
  }
}

template <int FEATURES>
void backwards(const Shape& shape, const Network& n, const float* normals, const float* kept,
               const float* slopes, float* to_query, float* const* to_layers) {
  const Layers<FEATURES> layers(shape.features, n.weight, n.bias, n.second, n.last_bias);
  Gradient<FEATURES> gradient;
  for (int64_t first = 0; first < shape.rows; first += LANES) {
    const Rows rows{shape.rows, first, int(std::min<int64_t>(LANES, shape.rows - first))};
    Vector query[SIZE], normal[SIZE], to_mixed[SIZE], to_queries[SIZE]{}, x[FEATURES]{};
    for (int j = 0; j < SIZE; j++) {
      query[j] = rows.load(n.query, j) * SCALE;
      normal[j] = rows.load(normals, j);
      to_mixed[j] = rows.load(slopes, j);
    }
    const Vector highest = rows.load(kept, 0), inverse = rows.load(kept, 1);
    const Vector rate = rows.load(kept, 2);
    const Vector centre = mean(to_mixed), along = dot(to_mixed, normal) / float(SIZE);
    for (int j = 0; j < SIZE; j++) to_mixed[j] = rate * (to_mixed[j] - centre - normal[j] * along);
    // The weighted mean, over the entities, of the slopes of their weights.
    const Vector average = dot(to_mixed, normal) / rate;
    for (int64_t s = 0; s < shape.slots; s++) {
      const Integers mask = rows.load(n.mask, s);
      if (!anywhere(mask)) continue;
      for (int f = 0; f < shape.features; f++)
        x[f] = rows.load_and_fetch_next(n.features, f * shape.slots + s);
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
  }
  gradient.store(shape.features, to_layers[0], to_layers[1], to_layers[2], to_layers[3]);
}

using Floats = ffi::Buffer<ffi::F32>;
using Result = ffi::Result<Floats>;

struct Arguments {
  Floats weight, bias, second, last_bias, query, features;
  ffi::Buffer<ffi::PRED> mask;

  Shape shape() const {
    auto sizes = features.dimensions();
    const int64_t* last = sizes.end() - 3;
    int64_t batch = 1;
    for (const int64_t* size = sizes.begin(); size != last; size++) batch *= *size;
    return {batch, last[0], last[1], last[2]};
  }

  Network network(const Shape& shape, int64_t i) const {
    return {weight.typed_data() + i * HIDDEN * shape.features,
            bias.typed_data() + i * HIDDEN,
            second.typed_data() + i * SIZE * HIDDEN,
            last_bias.typed_data() + i * SIZE,
            query.typed_data() + i * SIZE * shape.rows,
            features.typed_data() + i * shape.features * shape.slots * shape.rows,
            mask.typed_data() + i * shape.slots * shape.rows};
  }
};

ffi::Error forwards_of_all(Floats weight, Floats bias, Floats second, Floats last_bias,
                           Floats query, Floats features, ffi::Buffer<ffi::PRED> mask,
                           Result normal, Result kept) {
  const Arguments arguments{weight, bias, second, last_bias, query, features, mask};
  const Shape shape = arguments.shape();
  auto run = shape.features <= 2 ? forwards<2> : shape.features <= 4 ? forwards<4> : forwards<8>;
  for (int64_t i = 0; i < shape.batch; i++)
    run(shape, arguments.network(shape, i), normal->typed_data() + i * SIZE * shape.rows,
        kept->typed_data() + i * 3 * shape.rows);
  return ffi::Error::Success();
}

ffi::Error backwards_of_all(Floats weight, Floats bias, Floats second, Floats last_bias,
                            Floats query, Floats features, ffi::Buffer<ffi::PRED> mask,
                            Floats normal, Floats kept, Floats slope, Result to_weight,
                            Result to_bias, Result to_second, Result to_last_bias,
                            Result to_query) {
  const Arguments arguments{weight, bias, second, last_bias, query, features, mask};
  const Shape shape = arguments.shape();
  auto run = shape.features <= 2 ? backwards<2> : shape.features <= 4 ? backwards<4> : backwards<8>;
  for (int64_t i = 0; i < shape.batch; i++) {
    float* to_layers[] = {to_weight->typed_data() + i * HIDDEN * shape.features,
                          to_bias->typed_data() + i * HIDDEN,
                          to_second->typed_data() + i * SIZE * HIDDEN,
                          to_last_bias->typed_data() + i * SIZE};
    run(shape, arguments.network(shape, i), normal.typed_data() + i * SIZE * shape.rows,
        kept.typed_data() + i * 3 * shape.rows, slope.typed_data() + i * SIZE * shape.rows,
        to_query->typed_data() + i * SIZE * shape.rows, to_layers);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(pairs_forwards, forwards_of_all,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(pairs_backwards, backwards_of_all,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());
