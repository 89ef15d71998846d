// Sixteen lanes as two 256-bit registers. Needs AVX2 and FMA; bf16 and int8 products are built from wider ones.
#pragma once

#include <immintrin.h>

namespace whet {

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
using B = I;

inline F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x.lo), _mm256_storeu_ps(p + 8, x.hi); }
inline F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline F fms(F a, F b, F c) { return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)}; }
inline F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F abs(F a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline F round(F a) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, nearest), _mm256_round_ps(a.hi, nearest)};
}
inline float reduce_add(F a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(F a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline __m256 scale_by_power(__m256 x, __m256 n) {
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 scaled = _mm256_mul_ps(x, _mm256_castsi256_ps(power));
  return _mm256_and_ps(scaled, _mm256_cmp_ps(n, _mm256_set1_ps(-126.0f), _CMP_GE_OQ));
}
inline F scale_by_power(F x, F n) { return {scale_by_power(x.lo, n.lo), scale_by_power(x.hi, n.hi)}; }
inline __m256 keep_half(__m256 x, int from, int to, float other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(from), lane),
                                             _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane));
  return _mm256_blendv_ps(_mm256_set1_ps(other), x, _mm256_castsi256_ps(inside));
}
inline F keep(F x, int from, int to, float other) {
  return {keep_half(x.lo, from, to, other), keep_half(x.hi, from - 8, to - 8, other)};
}

inline F scale_down(F x, F n) { return scale_by_power(x, n); }
inline __m256 times_power(__m256 x, __m256 n) {
  n = _mm256_min_ps(_mm256_max_ps(n, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(128.0f));  // the ends are 0 and infinity
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(x, _mm256_castsi256_ps(power));
}
inline F times_power(F x, F n) { return {times_power(x.lo, n.lo), times_power(x.hi, n.hi)}; }
// the sums of eight vectors of sixteen lanes
inline __m256 sums_of_eight(const float* vectors) {
  __m256 two[2];
  for (int i = 0; i < 2; i++) {
    __m256 v[4];
    for (int j = 0; j < 4; j++) {
      const F x = load(vectors + LANES * (4 * i + j));
      v[j] = _mm256_add_ps(x.lo, x.hi);
    }
    two[i] = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  }
  return _mm256_add_ps(_mm256_permute2f128_ps(two[0], two[1], 0x20), _mm256_permute2f128_ps(two[0], two[1], 0x31));
}
inline F sums_of_sixteen(const float* vectors) { return {sums_of_eight(vectors), sums_of_eight(vectors + 8 * LANES)}; }

// the columns of eight rows of eight floats; those of `to` begin sixteen apart
inline void transpose_8(const float* from, size_t stride, float* to) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from + stride * i);
  for (int i = 0; i < 8; i += 2)
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]), t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44), r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44), r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int j = 0; j < 4; j++) {
    _mm256_storeu_ps(to + 16 * j, _mm256_permute2f128_ps(r[j], r[4 + j], 0x20));
    _mm256_storeu_ps(to + 16 * (4 + j), _mm256_permute2f128_ps(r[j], r[4 + j], 0x31));
  }
}
inline void transpose_16(const float* from, size_t stride, float* to) {
  for (int row = 0; row < 16; row += 8)
    for (int column = 0; column < 16; column += 8) transpose_8(from + stride * row + column, stride, to + 16 * column + row);
}

inline I set1_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline __m256i load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_half(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline I load_i(const int32_t* p) { return {load_half(p), load_half(p + 8)}; }
inline void store_i(int32_t* p, I x) { store_half(p, x.lo), store_half(p + 8, x.hi); }
inline I add_i(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

inline B load_bytes(const void* p) { return {load_half(p), load_half(static_cast<const char*>(p) + 32)}; }
inline void store_bytes(void* p, B x) { store_half(p, x.lo), store_half(static_cast<char*>(p) + 32, x.hi); }

// _mm256_maddubs_epi16 would saturate (two products reach 2 * 255 * 127), so even and odd bytes go apart, as 16 bits.
inline __m256i dot_u8s8(__m256i acc, __m256i u, __m256i s) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
inline I dot_u8s8(I acc, B u, B s) { return {dot_u8s8(acc.lo, u.lo, s.lo), dot_u8s8(acc.hi, u.hi, s.hi)}; }

inline __m256 even_bf16(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
inline __m256 odd_bf16(__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536))); }
inline __m256 dot_bf16(__m256 acc, __m256i a, __m256i b) {
  return _mm256_fmadd_ps(even_bf16(a), even_bf16(b), _mm256_fmadd_ps(odd_bf16(a), odd_bf16(b), acc));
}
inline F dot_bf16(F acc, B a, B b) { return {dot_bf16(acc.lo, a.lo, b.lo), dot_bf16(acc.hi, a.hi, b.hi)}; }

inline B set1_bytes(int32_t four) { return set1_i(four); }
inline __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline B low_nibbles(B x) { return {low_nibbles(x.lo), low_nibbles(x.hi)}; }
inline B high_nibbles(B x) {
  return {low_nibbles(_mm256_srli_epi16(x.lo, 4)), low_nibbles(_mm256_srli_epi16(x.hi, 4))};
}
inline __m256i spread_half(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_mullo_epi32(wide, _mm256_set1_epi32(0x01010101));
}
inline B spread_bytes(const uint8_t* p) { return {spread_half(p), spread_half(p + 8)}; }
inline __m256i mul_small_bytes(__m256i x, __m256i y) {
  return _mm256_mullo_epi16(x, _mm256_and_si256(y, _mm256_set1_epi16(255)));
}
inline B mul_small_bytes(B x, B y) { return {mul_small_bytes(x.lo, y.lo), mul_small_bytes(x.hi, y.hi)}; }
inline B add_bytes(B x, B y) { return {_mm256_add_epi8(x.lo, y.lo), _mm256_add_epi8(x.hi, y.hi)}; }
inline B sub_bytes(B x, B y) { return {_mm256_sub_epi8(x.lo, y.lo), _mm256_sub_epi8(x.hi, y.hi)}; }
inline B eight_times(B x) { return {_mm256_slli_epi16(x.lo, 3), _mm256_slli_epi16(x.hi, 3)}; }

inline __m256 widen_bf16(const uint16_t* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline F load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
// the lower halves of two times 8 int32 that are no more than that, in order
inline __m256i lower_halves(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
inline __m256i round_to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
  const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(upper, _mm256_set1_epi32(1)));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
}
inline void store_bf16(uint16_t* p, F x) { store_half(p, lower_halves(round_to_bf16(x.lo), round_to_bf16(x.hi))); }
inline __m256 widen_s8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline F load_s8(const int8_t* p) { return {widen_s8(p), widen_s8(p + 8)}; }
inline __m256i upper_half(__m256 x) { return _mm256_srli_epi32(_mm256_castps_si256(x), 16); }
inline void widen_s8(uint16_t* to, const int8_t* p) {
  for (int i = 0; i < 32; i += 16)
    store_half(to + i, lower_halves(upper_half(widen_s8(p + i)), upper_half(widen_s8(p + i + 8))));
}
inline void store_s8(int8_t* p, F x) {
  float lanes[LANES];
  store(lanes, round(x));
  for (int i = 0; i < LANES; i++) p[i] = static_cast<int8_t>(lanes[i]);
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_to_write(const void* p) { asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(p))); }
inline void pause() { _mm_pause(); }

inline uint32_t at_least(F a, F b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
  return static_cast<uint32_t>(lo | hi << 8);
}
inline __m256 add_at_least(__m256 sum, __m256 y, __m256 x, __m256 bound) {
  return _mm256_add_ps(sum, _mm256_and_ps(y, _mm256_cmp_ps(x, bound, _CMP_GE_OQ)));
}
inline F add_at_least(F sum, F y, F x, F bound) {
  return {add_at_least(sum.lo, y.lo, x.lo, bound.lo), add_at_least(sum.hi, y.hi, x.hi, bound.hi)};
}
// For every eight bits, the places of those that are set.
struct ChosenPlaces {
  uint8_t of[256][8];
};
constexpr ChosenPlaces chosen_places() {
  ChosenPlaces places{};
  for (int bits = 0; bits < 256; bits++)
    for (int lane = 0, count = 0; lane < 8; lane++)
      if (bits >> lane & 1) places.of[bits][count++] = static_cast<uint8_t>(lane);
  return places;
}
inline constexpr ChosenPlaces kChosenPlaces = chosen_places();
inline __m256i chosen_half(__m256i x, uint32_t chosen) {
  const auto places = reinterpret_cast<const __m128i*>(kChosenPlaces.of[chosen]);
  return _mm256_permutevar8x32_epi32(x, _mm256_cvtepu8_epi32(_mm_loadl_epi64(places)));
}
inline void store_chosen_i(int32_t* p, I x, uint32_t chosen) {
  store_half(p, chosen_half(x.lo, chosen & 255));
  store_half(p + __builtin_popcount(chosen & 255), chosen_half(x.hi, chosen >> 8));
}
inline void store_chosen(float* p, F x, uint32_t chosen) {
  store_half(p, chosen_half(_mm256_castps_si256(x.lo), chosen & 255));
  store_half(p + __builtin_popcount(chosen & 255), chosen_half(_mm256_castps_si256(x.hi), chosen >> 8));
}

}  // namespace whet
