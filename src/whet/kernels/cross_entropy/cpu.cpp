// Cross-entropy with its gradient, and sums of bfloat16 matrices in float32, for callers outside.
#include "kernel.h"

#include "../entry.h"

#include <algorithm>
#include <vector>

namespace {
template <typename T>
void all_rows(T* logits, int num_rows, int vocab, const int64_t* target, float smoothing, float scale, float* loss) {
  using namespace whet;
  const double num_logits = static_cast<double>(num_rows) * vocab;
  each_beside_torch({2 * sizeof(T) * num_logits, 20 * num_logits}, num_rows, [&](int row) {
    static thread_local std::vector<float> room;
    T* x = logits + static_cast<size_t>(vocab) * row;
    if (target[row] < 0) {
      std::fill_n(x, vocab, T{});
      loss[row] = 0;
      return;
    }
    if (sizeof(T) < sizeof(float) && room.size() < static_cast<size_t>(vocab)) room.resize(vocab);
    loss[row] = cross_entropy::row(x, vocab, target[row], smoothing, scale, room.data());
  });
}
}  // namespace

// The loss of each row of logits [num_rows][vocab], float32 or bfloat16, which are overwritten with its gradient times
// `scale`. A row whose target is negative counts nothing: its loss and its gradient are 0.
WHET_EXPORT void whet_cross_entropy(void* logits, int32_t is_bf16, int32_t num_rows, int32_t vocab,
                                   const int64_t* target, float smoothing, float scale, float* loss) {
  if (is_bf16) {
    all_rows(static_cast<uint16_t*>(logits), num_rows, vocab, target, smoothing, scale, loss);
  } else {
    all_rows(static_cast<float*>(logits), num_rows, vocab, target, smoothing, scale, loss);
  }
}

// sum += x, both num_rows * size numbers, contiguous; x is bfloat16.
WHET_EXPORT void whet_add_bf16(float* sum, const uint16_t* x, int32_t num_rows, int32_t size) {
  using namespace whet;
  constexpr size_t ITEM = 1 << 14;
  const size_t num_values = static_cast<size_t>(num_rows) * size;
  const auto add_item = [&](int item) {
    const size_t begin = ITEM * item, count = std::min(ITEM, num_values - begin);
    cross_entropy::add_part(sum + begin, x + begin, static_cast<int>(count));
  };
  const double num_ops = static_cast<double>(num_values);
  each_beside_torch({10 * num_ops, num_ops}, static_cast<int>((num_values + ITEM - 1) / ITEM), add_item);
}
