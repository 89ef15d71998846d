// Sixteen lanes as one 512-bit register. Needs AVX-512 F, BW, VL, DQ and VNNI; without BF16, its products and rounding are
// built from floats.
#pragma once

#include <immintrin.h>

namespace whet {

using F = __m512;
using I = __m512i;
using B = __m512i;

inline F set1(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }  // a b - c
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F abs(F a) { return _mm512_abs_ps(a); }
inline F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline float reduce_add(F a) { return _mm512_reduce_add_ps(a); }
inline float reduce_max(F a) { return _mm512_reduce_max_ps(a); }
// x * 2^n for whole n; 0 where that is below the normal numbers
inline F scale_by_power(F x, F n) {
  const F scaled = _mm512_scalef_ps(x, n);
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(n, _mm512_set1_ps(-126.0f), _CMP_GE_OQ), scaled);
}
// lanes from..to - 1 of x, `other` in the rest; from and to may lie beyond the lanes
inline F keep(F x, int from, int to, float other) {
  const auto below = [](int n) { return n <= 0 ? 0u : n >= LANES ? 0xffffu : (1u << n) - 1; };
  return _mm512_mask_mov_ps(_mm512_set1_ps(other), static_cast<__mmask16>(below(to) & ~below(from)), x);
}

// x * 2^n for whole n; 0 or next to it where that is below the normal numbers
inline F scale_down(F x, F n) { return _mm512_scalef_ps(x, n); }
// x * 2^n for whole n of any size: 0 or next to it below the normal numbers, infinite above them
inline F times_power(F x, F n) { return _mm512_scalef_ps(x, n); }
// lane i is the sum of the i-th of sixteen vectors, which lie side by side
inline F sums_of_sixteen(const float* vectors) {
  F four[4];
  for (int i = 0; i < 4; i++) {
    const float* at = vectors + 4 * LANES * i;
    const F a = load(at), b = load(at + LANES), c = load(at + 2 * LANES), d = load(at + 3 * LANES);
    const F ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const F cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
    four[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  const auto halved = [](F a, F b) {
    return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return halved(halved(four[0], four[1]), halved(four[2], four[3]));
}

// to [16][16] gets the columns of sixteen rows of sixteen floats, which begin `stride` apart
inline void transpose_16(const float* from, size_t stride, float* to) {
  F r[16], t[16];
  for (int i = 0; i < 16; i++) r[i] = load(from + stride * i);
  for (int i = 0; i < 16; i += 2)
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  for (int i = 0; i < 16; i += 4) {  // r[i + j] has in its 128 bits number l the column 4 l + j of four rows
    const auto joined = [&](int a, int b, bool is_high) {
      const __m512d x = _mm512_castps_pd(t[i + a]), y = _mm512_castps_pd(t[i + b]);
      return _mm512_castpd_ps(is_high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
    };
    r[i] = joined(0, 2, false), r[i + 1] = joined(0, 2, true);
    r[i + 2] = joined(1, 3, false), r[i + 3] = joined(1, 3, true);
  }
  for (int j = 0; j < 4; j++) {
    const F even[] = {_mm512_shuffle_f32x4(r[j], r[4 + j], 0x88), _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88)};
    const F odd[] = {_mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd), _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd)};
    store(to + 16 * j, _mm512_shuffle_f32x4(even[0], even[1], 0x88));
    store(to + 16 * (8 + j), _mm512_shuffle_f32x4(even[0], even[1], 0xdd));
    store(to + 16 * (4 + j), _mm512_shuffle_f32x4(odd[0], odd[1], 0x88));
    store(to + 16 * (12 + j), _mm512_shuffle_f32x4(odd[0], odd[1], 0xdd));
  }
}

inline I set1_i(int32_t x) { return _mm512_set1_epi32(x); }
inline I load_i(const int32_t* p) { return _mm512_loadu_si512(p); }
inline void store_i(int32_t* p, I x) { _mm512_storeu_si512(p, x); }
inline I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }

inline B load_bytes(const void* p) { return _mm512_loadu_si512(p); }

// Written as assembly, since GCC 12 copies the sum to and fro around these two intrinsics, and spills: 2x in a matrix
// product.
// acc + the sum of four products of an unsigned byte (weight) and a signed one (activation), a lane
inline I dot_u8s8(I acc, B u, B s) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u), "v"(s));
  return acc;
}
// acc + the sum of two products of bf16, a lane
#ifdef __AVX512BF16__
inline F dot_bf16(F acc, B a, B b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  return acc;
}
#else
inline F even_bf16(B x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
inline F odd_bf16(B x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536))); }
inline F dot_bf16(F acc, B a, B b) {
  return fma(even_bf16(a), even_bf16(b), fma(odd_bf16(a), odd_bf16(b), acc));
}
#endif

inline B set1_bytes(int32_t four) { return _mm512_set1_epi32(four); }
inline B low_nibbles(B x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline B high_nibbles(B x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
// 16 bytes, each four times over
inline B spread_bytes(const uint8_t* p) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_mullo_epi32(wide, _mm512_set1_epi32(0x01010101));
}
// bytes x * y where no product exceeds 255
inline B mul_small_bytes(B x, B y) {
  return _mm512_mullo_epi16(x, _mm512_and_si512(y, _mm512_set1_epi16(255)));
}
inline B add_bytes(B x, B y) { return _mm512_add_epi8(x, y); }
inline B sub_bytes(B x, B y) { return _mm512_sub_epi8(x, y); }
inline B eight_times(B x) { return _mm512_slli_epi16(x, 3); }  // of bytes up to 31
inline void store_bytes(void* p, B x) { _mm512_storeu_si512(p, x); }

inline F load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
#ifdef __AVX512BF16__
inline void store_bf16(uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x));
}
#else
inline void store_bf16(uint16_t* p, F x) {
  const __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
  const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(upper, _mm512_set1_epi32(1)));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(kept));
}
#endif
inline F load_s8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// 32 int8 as bf16, which holds them exactly: the upper halves of floats
inline void widen_s8(uint16_t* to, const int8_t* p) {
  alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i first = _mm512_castps_si512(load_s8(p)), second = _mm512_castps_si512(load_s8(p + LANES));
  _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, _mm512_load_si512(kUpper), second));
}
// rounded to the nearest whole number, which must lie within int8
inline void store_s8(int8_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
// in a state that it can be written in; written as assembly, since compilers have it behind a flag of its own
inline void prefetch_to_write(const void* p) { asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(p))); }
inline void pause() { _mm_pause(); }

// a bit a lane: a >= b
inline uint32_t at_least(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
// sum + y in the lanes where x >= bound
inline F add_at_least(F sum, F y, F x, F bound) {
  return _mm512_mask_add_ps(sum, _mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), sum, y);
}
// The lanes whose bit is set, side by side at p; sixteen places may be written.
inline void store_chosen(float* p, F x, uint32_t chosen) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(chosen), x));
}
inline void store_chosen_i(int32_t* p, I x, uint32_t chosen) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(static_cast<__mmask16>(chosen), x));
}

}  // namespace whet
