// Activations made ready for a matrix: as they are, rounded to bf16, or quantised to int8 a row.
#pragma once

#include "weights.h"

namespace whet {

// The largest magnitude in a row.
inline float largest(const float* x, int k) {
  F most = set1(0.0f);
  int i = 0;
  for (; i + LANES <= k; i += LANES) most = max(most, abs(load(x + i)));
  float result = reduce_max(most);
  for (; i < k; i++) result = std::fabs(x[i]) > result ? std::fabs(x[i]) : result;
  return result;
}

// 0, or NaN where the row holds a NaN or an infinity: maxima pass over a NaN, and whole numbers cannot hold one.
inline float nan_if_not_finite(const float* x, int k) {
  F total = set1(0.0f);
  int i = 0;
  for (; i + LANES <= k; i += LANES) total = fma(load(x + i), set1(0.0f), total);
  float result = reduce_add(total);
  for (; i < k; i++) result += x[i] * 0.0f;
  return result;
}

// q = round(x / scale), scale = max|x| / 127; the sum of q goes along, since weights are biased by 128. A row that is
// not finite gets the scale NaN.
inline void quantise_row(const float* x, int k, int padded, int8_t* q, float* scale, int32_t* sum) {
  const float most = largest(x, k);
  *scale = most / 127.0f + nan_if_not_finite(x, k);
  const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
  I total = set1_i(0);
  int i = 0;
  for (; i + LANES <= k; i += LANES) store_s8(q + i, mul(load(x + i), set1(inverse)));
  for (; i < k; i++) q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  for (; i < padded; i++) q[i] = 0;
  for (; i % 64 != 0; i++) q[i] = 0;  // a row takes whole lines
  for (int j = 0; j < i; j += 64) total = dot_u8s8(total, set1_bytes(0x01010101), load_bytes(q + j));
  int32_t lanes[LANES];
  store_i(lanes, total);
  *sum = 0;
  for (int32_t lane : lanes) *sum += lane;
}

inline void round_row(const float* x, int k, int padded, uint16_t* y) {
  int i = 0;
  for (; i + LANES <= k; i += LANES) store_bf16(y + i, load(x + i));
  for (; i < k; i++) y[i] = float_to_bf16(x[i]);
  for (; i < padded; i++) y[i] = 0;
}

// One row of x [K] into row m of the buffers behind `rows`.
inline void prepare_row(Kind kind, const float* x, int k, int padded, const Rows& rows, int m) {
  uint8_t* to = const_cast<uint8_t*>(rows.data) + rows.stride * m;
  if (kind == Kind::f32) {
    std::memcpy(to, x, 4ul * k);
  } else if (kind == Kind::bf16) {
    round_row(x, k, padded, reinterpret_cast<uint16_t*>(to));
  } else {
    quantise_row(x, k, padded, reinterpret_cast<int8_t*>(to), const_cast<float*>(rows.scale) + m,
                 const_cast<int32_t*>(rows.sum) + m);
  }
}

}  // namespace whet
