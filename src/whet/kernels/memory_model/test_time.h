// A memory that learns while it reads: one head of it, token by token. The equations are those of
// whet/models/memory_bank/inference_learning.py (Titans: Behrouz et al., 2024, arXiv:2501.00663).
//
// A head's state: the matrices at the chunk's start, the matrices now, and their momentum, [depth][c][c padded] each.
#pragma once

#include "layout.h"

namespace whet {
namespace memory_model {

// Vectors of one head that a thread works with.
struct Bench {
  std::vector<float> room;
  float *hidden, *active, *output, *error, *inner;

  explicit Bench(const Sizes& z) : room(5 * z.c()) {
    float* at = room.data();
    for (float** part : {&hidden, &active, &output, &error, &inner}) *part = at, at += z.c();
  }
};

// y [c] = x times a matrix.
inline void times(const Sizes& z, const float* x, const float* matrix, float* y) {
  const int c = z.c();
  for (int k = 0; k < c; k += LANES) {
    F sum = set1(0.0f);
    for (int i = 0; i < z.head(); i++) sum = fma(set1(x[i]), load(matrix + c * i + k), sum);
    store(y + k, sum);
  }
}

// y [c] = a matrix times x.
inline void times_transposed(const Sizes& z, const float* x, const float* matrix, float* y) {
  const int c = z.c();
  for (int i = 0; i < c; i++) y[i] = 0;
  for (int i = 0; i < z.head(); i++) {
    F sum = set1(0.0f);
    for (int k = 0; k < c; k += LANES) sum = fma(load(x + k), load(matrix + c * i + k), sum);
    y[i] = reduce_add(sum);
  }
}

inline float dot(const Sizes& z, const float* x, const float* y) {
  F sum = set1(0.0f);
  for (int k = 0; k < z.c(); k += LANES) sum = fma(load(x + k), load(y + k), sum);
  return reduce_add(sum);
}

inline float gelu(float x) { return 0.5f * x * (1 + std::erf(x * 0.70710678118654752f)); }
inline float gelu_slope(float x) {
  return 0.5f * (1 + std::erf(x * 0.70710678118654752f)) + x * std::exp(-0.5f * x * x) * 0.39894228040143268f;
}

// x becomes (x - mean) times the returned scale, without weights.
inline float normalise(const Sizes& z, float* x) {
  const int n = z.head();
  float mean = 0, squares = 0;
  for (int i = 0; i < n; i++) mean += x[i];
  mean /= n;
  for (int i = 0; i < n; i++) x[i] -= mean, squares += x[i] * x[i];
  const float scale = 1 / std::sqrt(squares / n + 1e-5f);
  for (int i = 0; i < n; i++) x[i] *= scale;
  return scale;
}

// momentum = eta momentum - x^T error, now = kept now + momentum.
inline void learn(const Sizes& z, const float* x, const float* error, float eta, float kept, float* now,
                  float* momentum) {
  const int c = z.c();
  for (int i = 0; i < z.head(); i++)
    for (int k = 0; k < c; k += LANES) {
      float *m = momentum + c * i + k, *w = now + c * i + k;
      const F moved = sub(mul(set1(eta), load(m)), mul(set1(x[i]), load(error + k)));
      store(m, moved);
      store(w, fma(set1(kept), load(w), moved));
    }
}

// The errors of both matrices for the loss |k + norm LN(gelu(k W1) W2) - v|^2: bench.inner of W1, bench.error of W2.
inline void errors_of_mlp(const Sizes& z, const float* norm, const float* start, const float* k, const float* v,
                          Bench& b) {
  const int n = z.head();
  times(z, k, start, b.hidden);
  for (int i = 0; i < z.c(); i++) b.active[i] = i < n ? gelu(b.hidden[i]) : 0.0f;
  times(z, b.active, start + z.matrix(), b.output);
  const float scale = normalise(z, b.output);
  float mean = 0, along = 0;
  for (int i = 0; i < n; i++) {
    b.error[i] = 2 * (k[i] + norm[i] * b.output[i] - v[i]) * norm[i];
    mean += b.error[i], along += b.error[i] * b.output[i];
  }
  mean /= n, along /= n;
  for (int i = 0; i < n; i++) b.error[i] = (b.error[i] - mean - b.output[i] * along) * scale;
  for (int i = n; i < z.c(); i++) b.error[i] = 0;
  times_transposed(z, b.error, start + z.matrix(), b.inner);
  for (int i = 0; i < n; i++) b.inner[i] *= gelu_slope(b.hidden[i]);
}

// Learn a token, whose row is what the first matrix gave.
inline void learn_token(const Sizes& z, const Layer& layer, int head, const float* row, bool begins_chunk, float* state,
                        Bench& b) {
  const int size = z.depth * z.matrix();
  float *start = state, *now = state + size, *momentum = now + size;
  if (begins_chunk) std::memcpy(start, now, sizeof(float) * size);
  const float *k = row + z.part(1, head), *v = row + z.part(2, head), *rates = row + z.rates();
  float squares;
  if (z.depth == 1) {
    times(z, k, start, b.error);
    for (int i = 0; i < z.c(); i++) b.error[i] = 2 * (b.error[i] - v[i]);
    squares = dot(z, k, k) * dot(z, b.error, b.error);
  } else {
    errors_of_mlp(z, layer.tt_norm, start, k, v, b);
    squares = dot(z, k, k) * dot(z, b.inner, b.inner) + dot(z, b.active, b.active) * dot(z, b.error, b.error);
  }
  const float step = rates[head] * z.clip / std::sqrt(std::max(squares, z.clip * z.clip));
  const float eta = rates[z.heads + head], kept = rates[2 * z.heads + head];
  for (int i = 0; i < z.c(); i++) b.error[i] *= step, b.inner[i] *= step;
  if (z.depth == 1) return learn(z, k, b.error, eta, kept, now, momentum);
  learn(z, k, b.inner, eta, kept, now, momentum);
  learn(z, b.active, b.error, eta, kept, now + z.matrix(), momentum + z.matrix());
}

// y [c] = what a query reads, times the factor.
inline void read_head(const Sizes& z, const Layer& layer, int head, const float* row, float factor, const float* state,
                      float* y, Bench& b) {
  const float *now = state + z.depth * z.matrix(), *q = row + z.part(0, head);
  times(z, q, now, y);
  if (z.depth == 2) {
    for (int i = 0; i < z.c(); i++) b.active[i] = i < z.head() ? gelu(y[i]) : 0.0f;
    times(z, b.active, now + z.matrix(), b.output);
    normalise(z, b.output);
    for (int i = 0; i < z.head(); i++) y[i] = q[i] + layer.tt_norm[i] * b.output[i];
  }
  for (int i = 0; i < z.c(); i++) y[i] *= factor;
}

}  // namespace memory_model
}  // namespace whet
