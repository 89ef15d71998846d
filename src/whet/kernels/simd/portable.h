// Sixteen lanes as arrays and loops, for any processor: slow, and right.
#pragma once

namespace whet {

struct F {
  float v[LANES];
};
struct I {
  int32_t v[LANES];
};
struct B {
  uint8_t v[LANES * 4];
};

template <typename T, typename Function>
inline T each(Function function) {
  T result;
  for (int i = 0; i < static_cast<int>(sizeof(result.v) / sizeof(result.v[0])); i++) result.v[i] = function(i);
  return result;
}

inline F set1(float x) { return each<F>([=](int) { return x; }); }
inline F load(const float* p) { return each<F>([=](int i) { return p[i]; }); }
inline void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
inline F add(F a, F b) { return each<F>([&](int i) { return a.v[i] + b.v[i]; }); }
inline F sub(F a, F b) { return each<F>([&](int i) { return a.v[i] - b.v[i]; }); }
inline F mul(F a, F b) { return each<F>([&](int i) { return a.v[i] * b.v[i]; }); }
inline F div(F a, F b) { return each<F>([&](int i) { return a.v[i] / b.v[i]; }); }
inline F fma(F a, F b, F c) { return each<F>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; }); }
inline F fms(F a, F b, F c) { return each<F>([&](int i) { return a.v[i] * b.v[i] - c.v[i]; }); }
inline F max(F a, F b) { return each<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline F min(F a, F b) { return each<F>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline F abs(F a) { return each<F>([&](int i) { return std::fabs(a.v[i]); }); }
inline F round(F a) { return each<F>([&](int i) { return std::nearbyint(a.v[i]); }); }
inline float reduce_add(F a) {
  float sum = 0;
  for (float x : a.v) sum += x;
  return sum;
}
inline float reduce_max(F a) {
  float most = a.v[0];
  for (float x : a.v) most = x > most ? x : most;
  return most;
}
inline F scale_by_power(F x, F n) {
  return each<F>([&](int i) { return n.v[i] < -126.0f ? 0.0f : std::ldexp(x.v[i], static_cast<int>(n.v[i])); });
}
inline F keep(F x, int from, int to, float other) {
  return each<F>([&](int i) { return from <= i && i < to ? x.v[i] : other; });
}

inline F scale_down(F x, F n) { return scale_by_power(x, n); }
inline F times_power(F x, F n) {
  return each<F>([&](int i) {
    const float whole = n.v[i] >= -127.0f ? (n.v[i] <= 128.0f ? n.v[i] : 128.0f) : -127.0f;
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(whole) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return x.v[i] * power;
  });
}
inline F sums_of_sixteen(const float* vectors) {
  return each<F>([=](int i) { return reduce_add(load(vectors + LANES * i)); });
}

inline void transpose_16(const float* from, size_t stride, float* to) {
  for (int row = 0; row < LANES; row++)
    for (int column = 0; column < LANES; column++) to[LANES * column + row] = from[stride * row + column];
}

inline I set1_i(int32_t x) { return each<I>([=](int) { return x; }); }
inline I load_i(const int32_t* p) { return each<I>([=](int i) { return p[i]; }); }
inline void store_i(int32_t* p, I x) { std::memcpy(p, x.v, sizeof x.v); }
inline I add_i(I a, I b) { return each<I>([&](int i) { return a.v[i] + b.v[i]; }); }
inline F to_float(I a) { return each<F>([&](int i) { return static_cast<float>(a.v[i]); }); }

inline B load_bytes(const void* p) {
  B result;
  std::memcpy(result.v, p, sizeof result.v);
  return result;
}
inline void store_bytes(void* p, B x) { std::memcpy(p, x.v, sizeof x.v); }

inline I dot_u8s8(I acc, B u, B s) {
  for (int i = 0; i < LANES; i++)
    for (int k = 0; k < 4; k++) acc.v[i] += u.v[4 * i + k] * static_cast<int8_t>(s.v[4 * i + k]);
  return acc;
}
inline F dot_bf16(F acc, B a, B b) {
  uint16_t x[2 * LANES], y[2 * LANES];
  std::memcpy(x, a.v, sizeof x);
  std::memcpy(y, b.v, sizeof y);
  for (int i = 0; i < LANES; i++) {
    acc.v[i] += bf16_to_float(x[2 * i + 1]) * bf16_to_float(y[2 * i + 1]);
    acc.v[i] += bf16_to_float(x[2 * i]) * bf16_to_float(y[2 * i]);
  }
  return acc;
}

inline B set1_bytes(int32_t four) {
  uint8_t bytes[4];
  std::memcpy(bytes, &four, 4);
  return each<B>([&](int i) { return bytes[i % 4]; });
}
inline B low_nibbles(B x) { return each<B>([&](int i) { return x.v[i] & 15; }); }
inline B high_nibbles(B x) { return each<B>([&](int i) { return x.v[i] >> 4; }); }
inline B spread_bytes(const uint8_t* p) { return each<B>([=](int i) { return p[i / 4]; }); }
inline B mul_small_bytes(B x, B y) { return each<B>([&](int i) { return static_cast<uint8_t>(x.v[i] * y.v[i]); }); }
inline B add_bytes(B x, B y) { return each<B>([&](int i) { return static_cast<uint8_t>(x.v[i] + y.v[i]); }); }
inline B sub_bytes(B x, B y) { return each<B>([&](int i) { return static_cast<uint8_t>(x.v[i] - y.v[i]); }); }
inline B eight_times(B x) { return each<B>([&](int i) { return static_cast<uint8_t>(8 * x.v[i]); }); }

inline F load_bf16(const uint16_t* p) { return each<F>([=](int i) { return bf16_to_float(p[i]); }); }
inline void store_bf16(uint16_t* p, F x) {
  for (int i = 0; i < LANES; i++) p[i] = float_to_bf16(x.v[i]);
}
inline F load_s8(const int8_t* p) { return each<F>([=](int i) { return static_cast<float>(p[i]); }); }
inline void widen_s8(uint16_t* to, const int8_t* p) {
  for (int i = 0; i < 32; i++) to[i] = float_to_bf16(p[i]);
}
inline void store_s8(int8_t* p, F x) {
  for (int i = 0; i < LANES; i++) p[i] = static_cast<int8_t>(std::nearbyint(x.v[i]));
}

inline void prefetch(const void*) {}
inline void prefetch_to_write(const void*) {}
inline void pause() {}

inline uint32_t at_least(F a, F b) {
  uint32_t bits = 0;
  for (int i = 0; i < LANES; i++) bits |= static_cast<uint32_t>(a.v[i] >= b.v[i]) << i;
  return bits;
}
inline F add_at_least(F sum, F y, F x, F bound) {
  return each<F>([&](int i) { return sum.v[i] + (x.v[i] >= bound.v[i] ? y.v[i] : 0.0f); });
}
inline void store_chosen(float* p, F x, uint32_t chosen) {
  for (int i = 0; i < LANES; i++)
    if (chosen >> i & 1) *p++ = x.v[i];
}
inline void store_chosen_i(int32_t* p, I x, uint32_t chosen) {
  for (int i = 0; i < LANES; i++)
    if (chosen >> i & 1) *p++ = x.v[i];
}

}  // namespace whet
