// The expensive parts of critics and policies on a CPU, forward and backward:
//
//   entity_attention  what an agent sees of one entity type: two layers for each entity, the
//                     agent's attention over the entities that are present, and LayerNorm
//   mlp               the agent's own features: two layers
//   embed             f(o, a): a layer for the action, and one for the encoded observation and that
//
// Arrays have rows (agent and sample) last; all may have the same further axes in front.
//
//   layers    weight [HIDDEN, features], bias [HIDDEN], weight [SIZE, HIDDEN], bias [SIZE]
//   query     [SIZE, rows]
//   features  [features, slots, rows], mask [slots, rows]
//   encoded   [inputs, rows]
//   actions   [actions, rows]
//
// Hidden units of pairs of row and entity never reach memory: the backward pass recomputes them.
// Rows are processed as many at a time as a vector has lanes. The vectors are those of GCC and
// Clang, as wide as the CPU's registers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

#if defined(__AVX512F__)
constexpr int LANES = 16, SUMS = 16;  // accumulators in registers at a time
#elif defined(__AVX__)
constexpr int LANES = 8, SUMS = 8;
#elif defined(__aarch64__)
constexpr int LANES = 4, SUMS = 16;
#else
constexpr int LANES = 4, SUMS = 8;
#endif

constexpr int HIDDEN = EPCX_HIDDEN, SIZE = EPCX_SIZE;
constexpr float EPSILON = EPCX_EPSILON, LOWEST = EPCX_LOWEST;
constexpr int PER_ROW = HIDDEN / LANES;  // vectors of hidden units of a row
constexpr int AT_ONCE = std::max(1, 8 / PER_ROW);  // rows
constexpr int TALL = SUMS / 4;  // rows of a product at a time, with 4 columns
static_assert(HIDDEN % LANES == 0 && SIZE % SUMS == 0 && LANES % AT_ONCE == 0);

#define NOINLINE __attribute__((noinline))  // keeps all registers for the function

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

inline bool any(Integers mask) {
  int32_t found = 0;
  for (int i = 0; i < LANES; i++) found |= mask[i];
  return found;
}
inline Vector all(float x) { return x - Vector{}; }
// NaN stays NaN in all three: it shows that training has diverged.
inline Vector relu(Vector x) { return x < 0 ? Vector{} : x; }
inline Vector at_most(Vector x, float limit) { return x > limit ? all(limit) : x; }
inline Vector at_least(Vector x, float limit) { return x < limit ? all(limit) : x; }

// e^x for x <= 0, within two units in the last place.
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

// Memory aligned for vectors, reused by the next call.
struct Scratch {
  std::vector<Vector> vectors;

  float* reserve(int64_t size) {
    if (int64_t(vectors.size()) * LANES < size) vectors.resize((size + LANES - 1) / LANES);
    return reinterpret_cast<float*>(vectors.data());
  }
};

inline float sum(Vector x) {
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

// Some rows of arrays that have them as last axis: one per lane, or fewer at the end.
template <bool ALL>
struct Rows {
  int64_t total, first;
  int number = LANES;

  Vector load(const float* array, int64_t row) const {
    Vector x{};
    copy(&x, array + row * total + first);
    return x;
  }

  // Zero where the other array is not positive: the gradient before a ReLU.
  Vector load_where(const float* positive, const float* array, int64_t row) const {
    return load(positive, row) > 0 ? load(array, row) : Vector{};
  }

  // Entities lie far apart in memory: without a prefetch the next rows would stall.
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

// Calls `function` with all rows, some at a time.
template <typename Function>
inline void for_rows(int64_t total, Function function) {
  int64_t first = 0;
  for (; first + LANES <= total; first += LANES) function(Rows<true>{total, first});
  if (first < total) function(Rows<false>{total, first, int(total - first)});
}

inline Vector dot(const Vector* a, const Vector* b) {
  Vector sums[4]{};  // a single one would be a chain of dependent additions
#pragma GCC unroll 16
  for (int j = 0; j < SIZE; j++) sums[j % 4] += a[j] * b[j];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

inline Vector mean(const Vector* x) {
  Vector sum = x[0];
  for (int j = 1; j < SIZE; j++) sum += x[j];
  return sum / float(SIZE);
}

// The weights and biases of two layers, or their gradients.
struct Parameters {
  float *weight, *bias, *second, *last_bias;
};

// Two layers with ReLU after each. Features beyond the given number are zero.
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

  NOINLINE void embed(const Vector* x, Vector* embedded) const {
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

// Gradients of the layers, summed over rows.
template <int FEATURES>
struct Gradient {
  Vector by_feature[FEATURES][PER_ROW], bias[PER_ROW], by_output[SIZE][PER_ROW];
  Vector last_bias[SIZE];

  Gradient() { std::memset((void*)this, 0, sizeof *this); }

  // `grad` is the gradient of the embedding before its ReLU.
  NOINLINE void add(const Layers<FEATURES>& layers, const Vector* x, const Vector* grad) {
    Vector hidden[LANES][PER_ROW], grad_hidden[LANES][PER_ROW];
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
            sums[r][p] += layers.by_output[j][p] * grad[j][first + r];
#pragma GCC unroll 4
      for (int r = 0; r < AT_ONCE; r++)
#pragma GCC unroll 8
        for (int p = 0; p < PER_ROW; p++)
          grad_hidden[first + r][p] = hidden[first + r][p] > 0 ? sums[r][p] : Vector{};
    }
    accumulate<FEATURES>(by_feature, x, grad_hidden);
    accumulate<SIZE>(by_output, grad, hidden);
    for (int r = 0; r < LANES; r++)
      for (int p = 0; p < PER_ROW; p++) bias[p] += grad_hidden[r][p];
    for (int j = 0; j < SIZE; j++) last_bias[j] += grad[j];
  }

  // sums[i] += the sum over rows of left[i] * right.
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
void entity_attention_forward(const Parameters& parameters, const Entities& seen, float* normal,
                              float* saved) {
  const Layers<FEATURES> layers(seen.features, parameters);
  std::vector<Vector> embedded(seen.slots * SIZE), scores(seen.slots);
  std::vector<Integers> masks(seen.slots);
  for_rows(seen.rows, [&](auto rows) {
    Vector query[SIZE], x[FEATURES]{}, highest = all(LOWEST);
    for (int j = 0; j < SIZE; j++) query[j] = rows.load(seen.query, j) * SCALE;
    int64_t present = 0;  // in one of the rows at least
    for (int64_t s = 0; s < seen.slots; s++) {
      const Integers mask = masks[present] = rows.load(seen.mask, s);
      if (!any(mask)) continue;
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
    rows.store(saved, 0, highest);
    rows.store(saved, 1, inverse);
    rows.store(saved, 2, rate);
  });
}

template <int FEATURES>
void entity_attention_backward(const Parameters& parameters, const Entities& seen,
                               const float* normals, const float* saved, const float* grads,
                               const Parameters& gradients, float* grad_query) {
  const Layers<FEATURES> layers(seen.features, parameters);
  Gradient<FEATURES> gradient;
  for_rows(seen.rows, [&](auto rows) {
    Vector query[SIZE], normal[SIZE], grad_mixed[SIZE], query_sums[SIZE]{}, x[FEATURES]{};
    for (int j = 0; j < SIZE; j++) {
      query[j] = rows.load(seen.query, j) * SCALE;
      normal[j] = rows.load(normals, j);
      grad_mixed[j] = rows.load(grads, j);
    }
    const Vector highest = rows.load(saved, 0), inverse = rows.load(saved, 1);
    const Vector rate = rows.load(saved, 2);
    const Vector centre = mean(grad_mixed), along = dot(grad_mixed, normal) / float(SIZE);
    for (int j = 0; j < SIZE; j++)
      grad_mixed[j] = rate * (grad_mixed[j] - centre - normal[j] * along);
    // The weighted mean, over the entities, of the gradients of their weights.
    const Vector average = dot(grad_mixed, normal) / rate;
    for (int64_t s = 0; s < seen.slots; s++) {
      const Integers mask = rows.load(seen.mask, s);
      if (!any(mask)) continue;
      for (int f = 0; f < seen.features; f++)
        x[f] = rows.load_and_fetch_next(seen.values, f * seen.slots + s);
      Vector embedded[SIZE], grad[SIZE];
      layers.embed(x, embedded);
      // Huge scores may round differently here; weights must not exceed one.
      Vector above = at_most(dot(query, embedded) - highest, 0);
      Vector weight = mask ? exponential(above) * inverse : Vector{};
      Vector grad_score = mask ? weight * (dot(grad_mixed, embedded) - average) : Vector{};
      for (int j = 0; j < SIZE; j++) {
        query_sums[j] += grad_score * embedded[j];
        Vector grad_embedded = weight * grad_mixed[j] + grad_score * query[j];
        grad[j] = embedded[j] > 0 ? grad_embedded : Vector{};
      }
      gradient.add(layers, x, grad);
    }
    for (int j = 0; j < SIZE; j++) rows.store(grad_query, j, query_sums[j] * SCALE);
  });
  gradient.store(seen.features, gradients);
}

template <int FEATURES>
void mlp_forward(int64_t features, int64_t number, const Parameters& parameters,
                 const float* values, float* embedded) {
  const Layers<FEATURES> layers(features, parameters);
  for_rows(number, [&](auto rows) {
    Vector x[FEATURES]{}, y[SIZE];
    for (int f = 0; f < features; f++) x[f] = rows.load(values, f);
    layers.embed(x, y);
    for (int j = 0; j < SIZE; j++) rows.store(embedded, j, y[j]);
  });
}

template <int FEATURES>
void mlp_backward(int64_t features, int64_t number, const Parameters& parameters,
                  const float* values, const float* embedded, const float* grads,
                  const Parameters& gradients) {
  const Layers<FEATURES> layers(features, parameters);
  Gradient<FEATURES> gradient;
  for_rows(number, [&](auto rows) {
    Vector x[FEATURES]{}, grad[SIZE];
    for (int f = 0; f < features; f++) x[f] = rows.load(values, f);
    for (int j = 0; j < SIZE; j++) grad[j] = rows.load_where(embedded, grads, j);
    gradient.add(layers, x, grad);
  });
  gradient.store(features, gradients);
}

// A block of the product below: TALL rows of `left` times WIDE rows of `right`, transposed.
template <int WIDE>
void multiply_block(int64_t rows, const float* left, const float* right, float* product,
                    int64_t width) {
  Vector sums[TALL][WIDE]{};
  for_rows(rows, [&](auto block) {
    Vector x[WIDE];
#pragma GCC unroll 4
    for (int i = 0; i < WIDE; i++) x[i] = block.load(right, i);
#pragma GCC unroll 4
    for (int j = 0; j < TALL; j++) {
      const Vector y = block.load(left, j);
#pragma GCC unroll 4
      for (int i = 0; i < WIDE; i++) sums[j][i] += y * x[i];
    }
  });
  for (int j = 0; j < TALL; j++)
    for (int i = 0; i < WIDE; i++) product[j * width + i] = sum(sums[j][i]);
}

// left [SIZE, rows] times the transpose of right [number, rows], into an array `width` wide.
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
struct Embedding {
  int64_t inputs, num_actions, rows;
  const float *first, *first_bias, *weight, *bias, *encoded, *actions;

  int64_t width() const { return inputs + SIZE; }

  template <typename Block>
  void act(Block block, Vector* acted) const {
    for (int j = 0; j < SIZE; j++) acted[j] = all(first_bias[j]);
    for (int64_t i = 0; i < num_actions; i++) {
      const Vector action = block.load(actions, i);
      for (int j = 0; j < SIZE; j++) acted[j] += action * first[j * num_actions + i];
    }
    for (int j = 0; j < SIZE; j++) acted[j] = relu(acted[j]);
  }

  void forward(float* embedded) const {
    std::vector<float> transposed(width() * SIZE);
    for (int64_t i = 0; i < width(); i++)
      for (int j = 0; j < SIZE; j++) transposed[i * SIZE + j] = weight[j * width() + i];
    std::vector<Vector> x(width());
    for_rows(rows, [&](auto block) {
      for (int64_t i = 0; i < inputs; i++) x[i] = block.load(encoded, i);
      act(block, &x[inputs]);
      for (int begin = 0; begin < SIZE; begin += SUMS) {
        Vector sums[SUMS];
#pragma GCC unroll 16
        for (int j = 0; j < SUMS; j++) sums[j] = all(bias[begin + j]);
        const float* weights = &transposed[begin];
        for (int64_t i = 0; i < width(); i++, weights += SIZE)
#pragma GCC unroll 16
          for (int j = 0; j < SUMS; j++) sums[j] += x[i] * weights[j];
#pragma GCC unroll 16
        for (int j = 0; j < SUMS; j++) block.store(embedded, begin + j, relu(sums[j]));
      }
    });
  }

  void backward(const float* embedded, const float* grads, float* grad_first,
                float* grad_first_bias, float* grad_weight, float* grad_bias, float* grad_encoded,
                float* grad_actions) const {
    // Of all rows, for the products that give the gradients of the weights.
    static thread_local Scratch scratch;
    float* acted = scratch.reserve(3 * SIZE * rows);
    float *grad_acted = acted + SIZE * rows, *grad = grad_acted + SIZE * rows;
    Vector bias_sums[SIZE]{}, first_bias_sums[SIZE]{};
    for_rows(rows, [&](auto block) {
      Vector x[SIZE];
      act(block, x);
      for (int j = 0; j < SIZE; j++) {
        const Vector y = block.load_where(embedded, grads, j);
        bias_sums[j] += y;
        block.store(grad, j, y);
        block.store(acted, j, x[j]);
      }
    });
    for (int64_t i = 0; i < inputs; i += STEP) backward_step(grad, i, grad_encoded + i * rows);
    for (int64_t i = 0; i < SIZE; i += STEP) backward_step(grad, inputs + i, grad_acted + i * rows);
    for_rows(rows, [&](auto block) {
      Vector y[SIZE];
      for (int j = 0; j < SIZE; j++) {
        y[j] = block.load_where(acted, grad_acted, j);
        first_bias_sums[j] += y[j];
        block.store(grad_acted, j, y[j]);
      }
      for (int64_t i = 0; i < num_actions; i++) {
        Vector total{};
        for (int j = 0; j < SIZE; j++) total += y[j] * first[j * num_actions + i];
        block.store(grad_actions, i, total);
      }
    });
    multiply(rows, grad, inputs, encoded, grad_weight, width());
    multiply(rows, grad, SIZE, acted, grad_weight + inputs, width());
    multiply(rows, grad_acted, num_actions, actions, grad_first, num_actions);
    for (int j = 0; j < SIZE; j++) {
      grad_bias[j] = sum(bias_sums[j]);
      grad_first_bias[j] = sum(first_bias_sums[j]);
    }
  }

  // Gradients of STEP inputs from those of the outputs.
  void backward_step(const float* grad, int64_t i, float* grad_inputs) const {
    float weights[SIZE][STEP];
    for (int j = 0; j < SIZE; j++) std::copy_n(weight + j * width() + i, STEP, weights[j]);
    for_rows(rows, [&](auto block) {
      Vector sums[STEP]{};
#pragma GCC unroll 16
      for (int j = 0; j < SIZE; j++) {
        const Vector y = block.load(grad, j);
#pragma GCC unroll 8
        for (int k = 0; k < STEP; k++) sums[k] += y * weights[j][k];
      }
#pragma GCC unroll 8
      for (int k = 0; k < STEP; k++) block.store(grad_inputs, k, sums[k]);
    });
  }

  static constexpr int STEP = 8;
  static_assert(SIZE % STEP == 0);
};

// Entry points for XLA

using Floats = ffi::Buffer<ffi::F32>;
using Bools = ffi::Buffer<ffi::PRED>;
using Result = ffi::Result<Floats>;

// The number of stacked arrays, each of which has this many axes.
int64_t count(const Floats& array, int axes) {
  int64_t number = 1;
  for (size_t i = 0; i + axes < array.dimensions().size(); i++) number *= array.dimensions()[i];
  return number;
}

int64_t size(const Floats& array, int axis_from_the_end) {
  return array.dimensions()[array.dimensions().size() - axis_from_the_end];
}

// Selects one of the stacked arrays.
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

ffi::Error entity_attention_all_forward(Floats weight, Floats bias, Floats second, Floats last_bias,
                                        Floats query, Floats features, Bools mask, Result normal,
                                        Result saved) {
  const int64_t sizes[] = {size(features, 3), size(features, 2), size(features, 1)};
  auto run = BY_FEATURES(sizes[0], entity_attention_forward);
  return each(count(features, 3), [&](One of) {
    run({of(weight), of(bias), of(second), of(last_bias)},
        {sizes[0], sizes[1], sizes[2], of(query), of(features), of(mask)}, of(normal), of(saved));
  });
}

ffi::Error entity_attention_all_backward(Floats weight, Floats bias, Floats second,
                                         Floats last_bias, Floats query, Floats features,
                                         Bools mask, Floats normal, Floats saved, Floats grad,
                                         Result grad_weight, Result grad_bias, Result grad_second,
                                         Result grad_last_bias, Result grad_query) {
  const int64_t sizes[] = {size(features, 3), size(features, 2), size(features, 1)};
  auto run = BY_FEATURES(sizes[0], entity_attention_backward);
  return each(count(features, 3), [&](One of) {
    run({of(weight), of(bias), of(second), of(last_bias)},
        {sizes[0], sizes[1], sizes[2], of(query), of(features), of(mask)}, of(normal), of(saved),
        of(grad), {of(grad_weight), of(grad_bias), of(grad_second), of(grad_last_bias)},
        of(grad_query));
  });
}

ffi::Error mlp_all_forward(Floats weight, Floats bias, Floats second, Floats last_bias,
                           Floats features, Result embedded) {
  auto run = BY_FEATURES(size(features, 2), mlp_forward);
  return each(count(features, 2), [&](One of) {
    run(size(features, 2), size(features, 1),
        {of(weight), of(bias), of(second), of(last_bias)}, of(features), of(embedded));
  });
}

ffi::Error mlp_all_backward(Floats weight, Floats bias, Floats second, Floats last_bias,
                            Floats features, Floats embedded, Floats grad, Result grad_weight,
                            Result grad_bias, Result grad_second, Result grad_last_bias) {
  auto run = BY_FEATURES(size(features, 2), mlp_backward);
  return each(count(features, 2), [&](One of) {
    run(size(features, 2), size(features, 1),
        {of(weight), of(bias), of(second), of(last_bias)}, of(features), of(embedded), of(grad),
        {of(grad_weight), of(grad_bias), of(grad_second), of(grad_last_bias)});
  });
}

ffi::Error embed_all_forward(Floats first, Floats first_bias, Floats weight, Floats bias,
                             Floats encoded, Floats actions, Result embedded) {
  return each(count(encoded, 2), [&](One of) {
    Embedding{size(encoded, 2), size(actions, 2), size(encoded, 1), of(first), of(first_bias),
              of(weight), of(bias), of(encoded), of(actions)}
        .forward(of(embedded));
  });
}

ffi::Error embed_all_backward(Floats first, Floats first_bias, Floats weight, Floats bias,
                              Floats encoded, Floats actions, Floats embedded, Floats grad,
                              Result grad_first, Result grad_first_bias, Result grad_weight,
                              Result grad_bias, Result grad_encoded, Result grad_actions) {
  return each(count(encoded, 2), [&](One of) {
    Embedding{size(encoded, 2), size(actions, 2), size(encoded, 1), of(first), of(first_bias),
              of(weight), of(bias), of(encoded), of(actions)}
        .backward(of(embedded), of(grad), of(grad_first), of(grad_first_bias), of(grad_weight),
                  of(grad_bias), of(grad_encoded), of(grad_actions));
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_entity_attention_forward, entity_attention_all_forward);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_entity_attention_backward, entity_attention_all_backward);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_mlp_forward, mlp_all_forward);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_mlp_backward, mlp_all_backward);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_embed_forward, embed_all_forward);
XLA_FFI_DEFINE_HANDLER_SYMBOL(epcx_embed_backward, embed_all_backward);
