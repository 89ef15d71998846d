// Stochastic rounding: a float32 number becomes one of its two neighbours in bfloat16, the nearer one more often, so
// that the result is right on average. Source: Zamirai et al., 2020, arXiv:2010.06192.
#pragma once

#include <cstdint>
#include <cstring>

namespace whet {
namespace stochastic_rounding {

// The finaliser of MurmurHash3 (Appleby, public domain): each bit of the input changes half of the output's.
inline uint32_t mixed(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  return h ^ (h >> 16);
}

// y[i] = x[i] with noise below the last bit that bfloat16 keeps. `first` is the place of x[0] in the whole tensor, plus a
// seed. The loop has no branch, so that the compiler uses vectors.
inline void round(const float* x, int n, uint32_t first, uint32_t salt, uint16_t* y) {
  for (int i = 0; i < n; i++) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const uint32_t noise = mixed(mixed(first + static_cast<uint32_t>(i)) ^ salt) >> 16;
    const uint32_t rounded = (bits + noise) >> 16;
    const uint32_t is_nan = (bits & 0x7fffffffu) > 0x7f800000u, is_infinite = (bits & 0x7fffffffu) == 0x7f800000u;
    const uint32_t odd = (bits >> 16) | (is_nan << 6);  // a NaN stays one: its quiet bit is set
    y[i] = static_cast<uint16_t>(is_nan | is_infinite ? odd : rounded);
  }
}

}  // namespace stochastic_rounding
}  // namespace whet
