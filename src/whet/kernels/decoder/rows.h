// Rows at the ends of a layer, in the steps of all families: embeddings, and rows made ready for a matrix.
#pragma once

#include <vector>

#include "../linear/kernel.h"
#include "../rms_norm/kernel.h"

namespace whet {

// Row `token` of an embedding [vocab][size] of float32 or bfloat16.
inline void embed(const uint8_t* embedding, bool is_bf16, int size, int32_t token, float* x) {
  if (!is_bf16) {
    std::memcpy(x, embedding + 4ul * size * token, 4ul * size);
    return;
  }
  const uint16_t* row = reinterpret_cast<const uint16_t*>(embedding) + size_t(size) * token;
  int i = 0;
  for (; i + LANES <= size; i += LANES) store(x + i, load_bf16(row + i));
  for (; i < size; i++) x[i] = bf16_to_float(row[i]);
}

// Make rows ready for a matrix: prepared row i is row `source(i)` of x, normalised where there is a norm. A row is
// normalised in the buffer of the thread that does it.
template <typename Source>
void prepare(Team& team, const Weights& weights, const float* x, int stride, int size, const float* norm, float eps,
             int num_rows, const Rows& rows, Source source) {
  team.each(num_rows, [&](int i) {
    const float* row = x + static_cast<size_t>(stride) * source(i);
    if (norm == nullptr) return prepare_row(weights.kind, row, size, weights.k, rows, i);
    static thread_local std::vector<float> normalised;
    normalised.resize(size);
    rms_norm_row(row, norm, size, eps, normalised.data());
    prepare_row(weights.kind, normalised.data(), size, weights.k, rows, i);
  });
}

}  // namespace whet
