// Root-mean-square normalisation of a row, and the residual that is added before it. Source: Zhang and Sennrich, 2019,
// arXiv:1910.07467.
#pragma once

#include "../linear/rows.h"

namespace whet {

// y = x / sqrt(mean(x^2) + eps) * weight. y may be x.
inline void rms_norm_row(const float* x, const float* weight, int size, float eps, float* y) {
  F squares[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int i = 0;
  for (; i + 4 * LANES <= size; i += 4 * LANES)
    for (int j = 0; j < 4; j++) {
      const F value = load(x + i + LANES * j);
      squares[j] = fma(value, value, squares[j]);
    }
  float sum = reduce_add(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
  for (; i < size; i++) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / size + eps);
  for (i = 0; i + LANES <= size; i += LANES) store(y + i, mul(mul(load(x + i), set1(scale)), load(weight + i)));
  for (; i < size; i++) y[i] = x[i] * scale * weight[i];
}

inline void add_row(float* x, const float* y, int size) {
  int i = 0;
  for (; i + LANES <= size; i += LANES) store(x + i, add(load(x + i), load(y + i)));
  for (; i < size; i++) x[i] += y[i];
}

}  // namespace whet
