// Sixteen lanes of a number, on whatever the machine has: AVX-512 (VNNI, bf16), AVX2, or plain loops.
//
// Each kernel is written once over these. F: 16 floats. I: 16 int32. B: 64 bytes, which are 16 groups of 4 int8 or of
// 2 bf16. WHET_ISA is 512, 2 or 0; the build compiles for one and picks it by what the processor says it can do.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace whet {

constexpr int LANES = 16;

inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// To the nearest, ties to even, as the processors do; a NaN stays one.
inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline int32_t load_i32(const void* at) {
  int32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

}  // namespace whet

#if WHET_ISA == 512
#include "avx512.h"
#elif WHET_ISA == 2
#include "avx2.h"
#else
#include "portable.h"
#endif

namespace whet {

// e^x to 2 units in the last place for x <= 88; 0 below -87.3. Range reduction by ln 2 in two parts, then the Taylor
// series to degree 6 of a remainder within +-ln(2)/2.
inline F exp(F x) {
  x = max(min(x, set1(88.0f)), set1(-87.3f - 17.0f));
  const F n = round(mul(x, set1(1.44269504088896341f)));
  F r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.3888889e-3f);
  p = fma(p, r, set1(8.3333333e-3f));
  p = fma(p, r, set1(4.1666667e-2f));
  p = fma(p, r, set1(1.6666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return scale_by_power(p, n);
}

inline F silu(F x) { return div(x, add(set1(1.0f), exp(sub(set1(0.0f), x)))); }

inline F sigmoid(F x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(set1(0.0f), x)))); }

// 2^(a b), with a relative error of at most 2e-7; 0 below the normal numbers. 2^r = 1 + r p(r) for a remainder r within
// +-1/2; p is the minimax polynomial of degree 5 for the relative error of 2^r, which is 2e-9 without rounding.
inline F exp2_of_product(F a, F b) {
  const F magic = set1(12582912.0f);  // 1.5 * 2^23: a sum with it has no fraction left
  const F n = sub(fma(a, b, magic), magic), r = fms(a, b, n);
  F p = set1(0.00015353362f);
  p = fma(p, r, set1(0.0013398875f));
  p = fma(p, r, set1(0.00961843692f));
  p = fma(p, r, set1(0.0555033237f));
  p = fma(p, r, set1(0.240226477f));
  p = fma(p, r, set1(0.693147182f));
  p = fma(p, r, set1(1.0f));
  return times_power(p, n);
}

// log(1 + e^x), with a relative error of at most 4e-7. log(1 + w) = 2 atanh(s) with s = w / (2 + w), and atanh(s) =
// s + s^3 p(s^2) with a minimax polynomial p of degree 3 for s^2 in [0, 1/9] (error 5e-9). A NaN stays one.
inline F softplus(F x) {
  const F w = exp(sub(set1(0.0f), abs(x)));
  const F s = div(w, add(set1(2.0f), w)), q = mul(s, s);
  F p = set1(0.140122309f);
  p = fma(p, q, set1(0.139995709f));
  p = fma(p, q, set1(0.200108498f));
  p = fma(p, q, set1(0.333332062f));
  const F half = fma(mul(s, q), p, s);
  return add(max(set1(0.0f), x), add(half, half));
}

}  // namespace whet
