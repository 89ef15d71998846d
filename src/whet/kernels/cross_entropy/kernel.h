// Cross-entropy of a row of logits, and its gradient in the place of the logits; reference.py has the rule.
//
// A row is read from memory once and written once: the three passes over it find it in a core's own cache. The first
// finds the largest logit, the second takes the exponentials and adds them up, the third scales them. Exponentials are
// kept in float32, in the place of float32 logits, or in the room of the thread for bfloat16 ones.
#pragma once

#include <cfloat>
#include <type_traits>

#include "../simd/parts.h"

namespace whet {
namespace cross_entropy {

constexpr int UNROLLED = 4;
constexpr int BLOCK = UNROLLED * LANES;
constexpr int SUMMED = 1024;  // exponentials that are summed in float32, in 64 lanes; these sums in float64

// Call part(i, count, j) for lanes i..i+count-1 of n; j is the number of the register among UNROLLED.
template <typename Part>
inline void each_part(int begin, int end, Part part) {
  int i = begin;
  for (; i + BLOCK <= end; i += BLOCK)
    for (int j = 0; j < UNROLLED; j++) part(i + LANES * j, LANES, j);
  for (; i < end; i += LANES) part(i, end - i < LANES ? end - i : LANES, 0);
}

inline F sum_of(const F (&parts)[UNROLLED]) { return add(add(parts[0], parts[1]), add(parts[2], parts[3])); }

struct Scan {
  float largest;  // at least -FLT_MAX
  double total;   // of all logits, where it is asked for
  bool is_usable;  // no NaN and no +inf
};

template <bool WITH_TOTAL, typename T>
inline Scan scan(const T* x, int n) {
  const F least = set1(-FLT_MAX), zero = set1(0.0f);
  F top[UNROLLED] = {least, least, least, least}, odd[UNROLLED] = {zero, zero, zero, zero};
  Scan found{};
  for (int begin = 0; begin < n; begin += SUMMED) {
    F total[UNROLLED] = {zero, zero, zero, zero};
    each_part(begin, n - begin < SUMMED ? n : begin + SUMMED, [&](int i, int count, int j) {
      const F logit = load_part(x + i, count, -INFINITY);
      const F value = max(least, logit);  // of a NaN and a number, max gives the second
      odd[j] = add(odd[j], sub(value, value));  // 0, or NaN for NaN and +inf
      top[j] = max(top[j], value);
      if (WITH_TOTAL) total[j] = add(total[j], keep(logit, 0, count, 0.0f));
    });
    if (WITH_TOTAL) found.total += reduce_add(sum_of(total));
  }
  found.largest = reduce_max(max(max(top[0], top[1]), max(top[2], top[3])));
  found.is_usable = reduce_add(sum_of(odd)) == 0.0f;
  return found;
}

// Return the sum of exp(x - largest), and leave these in `to`, which may be x.
template <typename T>
inline double exponentials(const T* x, int n, float largest, float* to) {
  const F top = set1(largest), zero = set1(0.0f);
  double sum = 0;
  for (int begin = 0; begin < n; begin += SUMMED) {
    F sums[UNROLLED] = {zero, zero, zero, zero};
    each_part(begin, n - begin < SUMMED ? n : begin + SUMMED, [&](int i, int count, int j) {
      const F value = exp(sub(load_part(x + i, count, -INFINITY), top));
      sums[j] = add(sums[j], value);
      store_part(to + i, value, count);
    });
    sum += reduce_add(sum_of(sums));
  }
  return sum;
}

// Return the loss of a row, and write its gradient times `scale` in the place of the logits.
// smoothing: the share of the target that is spread over all columns. room: n floats; unused for float32.
template <typename T>
inline float row(T* x, int n, int64_t target, float smoothing, float scale, float* room) {
  const Scan found = smoothing > 0 ? scan<true>(x, n) : scan<false>(x, n);
  if (!found.is_usable) {
    for (int i = 0; i < n; i++) store_narrow(x + i, NAN);
    return NAN;
  }
  const float logit = widen(x[target]);
  float* e = room;
  if constexpr (std::is_same_v<T, float>) e = x;
  const double sum = exponentials(x, n, found.largest, e);
  // The logarithm is added last: beside logits of 1e30, even a double would lose it.
  const double largest = found.largest, log_sum = std::log(sum);
  double loss = (1.0 - smoothing) * (largest - logit + log_sum);
  if (smoothing > 0) loss += smoothing * (largest - found.total / n + log_sum);
  const float spread = smoothing / static_cast<float>(n), at_target = e[target];
  const F factor = set1(static_cast<float>(scale / sum)), shift = set1(-spread * scale);
  each_part(0, n, [&](int i, int count, int) {
    store_part(x + i, fma(load_part(e + i, count, 0.0f), factor, shift), count);
  });
  store_narrow(x + target, static_cast<float>((at_target / sum - (1.0 - smoothing) - spread) * scale));
  return static_cast<float>(loss);
}

// sum += x.
template <typename T>
inline void add_part(float* sum, const T* x, int n) {
  each_part(0, n, [&](int i, int count, int) {
    store_part(sum + i, add(load_part(sum + i, count, 0.0f), load_part(x + i, count, 0.0f)), count);
  });
}

}  // namespace cross_entropy
}  // namespace whet
