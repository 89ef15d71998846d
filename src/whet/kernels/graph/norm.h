// Layer norm (Ba et al., 2016, arXiv:1607.06450) and RMS norm (Zhang and Sennrich, 2019, arXiv:1910.07467) of rows.
#pragma once

#include "../pool.h"
#include "seen.h"
#include "view.h"

namespace whet::graph {

struct Norm {
  const float *weight, *bias;  // [width] or null
  float eps;
  int32_t is_rms;  // no mean is subtracted
};

// y = (x - mean) / sqrt(variance + eps) * weight + bias. y may be x.
inline void normalise_row(const float* x, const Norm& norm, int width, float* y) {
  const float sum = norm.is_rms ? 0.0f : sum_of_row(x, width, 0.0f, [](F total, F value) { return add(total, value); });
  const F mean = set1(sum / static_cast<float>(width));
  const float squares = sum_of_row(x, width, sum / static_cast<float>(width), [&](F total, F value) {
    const F centred = sub(value, mean);
    return fma(centred, centred, total);
  });
  const F scale = set1(1.0f / std::sqrt(squares / static_cast<float>(width) + norm.eps));
  const auto normalised = [&](F value, int i, int count) {
    F result = mul(sub(value, mean), scale);
    if (norm.weight != nullptr) result = mul(result, load_part(norm.weight + i, count, 0.0f));
    return norm.bias == nullptr ? result : add(result, load_part(norm.bias + i, count, 0.0f));
  };
  int i = 0;
  for (; i + LANES <= width; i += LANES) store(y + i, normalised(load(x + i), i, LANES));
  if (i < width) store_part(y + i, normalised(load_part(x + i, width - i, 0.0f), i, width - i), width - i);
}

// total = x + other, out = norm(total); without `other`, total is x.
struct Normalise {
  View x, other, total, out;  // data of other and total is null where there is none
  Norm norm;
};

constexpr int ROWS_AT_ONCE = 4;  // of an item of work

// Share out rows: work(row). `all`: how many there are if none is left out.
template <typename Work>
void each_row(Team& team, const Chosen& chosen, int64_t all, Work work) {
  const int rows = static_cast<int>(chosen.count(all));
  team.each((rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, [&](int item) {
    for (int r = item * ROWS_AT_ONCE; r < std::min(rows, (item + 1) * ROWS_AT_ONCE); r++) work(chosen[r]);
  });
}

inline void normalise_row(const Normalise& op, int64_t r) {
  const int width = op.x.width();
  const float* from = op.x.row(r);
  float* out = op.out.row(r);
  if (op.other.data != nullptr) {
    const float* other = op.other.row(r);
    float* total = op.total.data == nullptr ? out : op.total.row(r);
    for (int i = 0; i < width; i += LANES) {
      const int count = std::min(LANES, width - i);
      store_part(total + i, add(load_part(from + i, count, 0.0f), load_part(other + i, count, 0.0f)), count);
    }
    from = total;
  }
  normalise_row(from, op.norm, width, out);
}

inline void normalise(Team& team, const Normalise& op, const Chosen& chosen) {
  each_row(team, chosen, op.x.num_rows(), [&](int64_t r) { normalise_row(op, r); });
}

}  // namespace whet::graph
