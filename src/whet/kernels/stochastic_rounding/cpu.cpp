// Stochastic rounding of float32 to bfloat16 for callers outside.
#include "kernel.h"

#include "../entry.h"

#include <algorithm>

// y = x, rounded up or down by chance; num_rows * size numbers, contiguous. The noise depends on the seed and on a
// number's place alone, so that the result does not depend on the number of threads.
WHET_EXPORT void whet_round_by_chance(const float* x, int32_t num_rows, int32_t size, int32_t seed, int32_t salt,
                                      uint16_t* y) {
  using namespace whet;
  constexpr size_t ITEM = 1 << 14;
  const size_t num_values = static_cast<size_t>(num_rows) * size;
  const auto round_item = [&](int item) {
    const size_t begin = ITEM * item, count = std::min(ITEM, num_values - begin);
    const uint32_t first = static_cast<uint32_t>(begin) + static_cast<uint32_t>(seed);
    stochastic_rounding::round(x + begin, static_cast<int>(count), first, static_cast<uint32_t>(salt), y + begin);
  };
  const double num_ops = static_cast<double>(num_values);
  each_beside_torch({6 * num_ops, 12 * num_ops}, static_cast<int>((num_values + ITEM - 1) / ITEM), round_item);
}
