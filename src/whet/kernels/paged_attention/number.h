// How the numbers of a cache meet a row of queries or of weights in products, for each kind of cache.
//
// A product takes a pack of both sides in each of 16 lanes: of the cache 16 packs side by side, of the row one for all.
// A row is made ready for that: kept, rounded to bf16, or, for a cache of bytes, cut into two planes of int8 that
// together have 15 bits, so that nothing is lost beside what the cache has lost, and sums are whole numbers.
#pragma once

#include "../simd/lanes.h"

namespace whet::attention {

// A row made ready: `number` [planes][length]; step and starts only where there are two planes.
template <typename Number>
struct Ready {
  Number* number;
  float* step;
  int32_t* starts;
  int length;
};

struct Floats {
  using Element = float;  // of the cache
  using Number = float;   // of a row
  using Many = F;
  using One = F;
  using Sum = F;
  static constexpr int PACK = 1, PLANES = 1;
  static Many many(const Element* p) { return load(p); }
  static One one(const Number* p, int) { return set1(*p); }
  static Sum start(const int32_t*) { return set1(0.0f); }
  static Sum dot(Sum sum, One one, Many many) { return fma(one, many, sum); }
  static F value(Sum sum, const float*) { return sum; }
  static void put(Number* p, F x) { store(p, x); }
};

struct Bf16s {
  using Element = uint16_t;
  using Number = uint16_t;
  using Many = B;
  using One = B;
  using Sum = F;
  static constexpr int PACK = 2, PLANES = 1;
  static Many many(const Element* p) { return load_bytes(p); }
  static One one(const Number* p, int) { return set1_bytes(load_i32(p)); }
  static Sum start(const int32_t*) { return set1(0.0f); }
  static Sum dot(Sum sum, One one, Many many) { return dot_bf16(sum, many, one); }
  static F value(Sum sum, const float*) { return sum; }
  static void put(Number* p, F x) { store_bf16(p, x); }
};

// The cache has q + 128, so sums start at -128 times the sum of their plane.
struct Bytes {
  using Element = uint8_t;
  using Number = int8_t;
  using Many = B;
  struct One {
    B high, low;
  };
  struct Sum {
    I high, low;
  };
  static constexpr int PACK = 4, PLANES = 2;
  static constexpr float HIGH = 128.0f;          // what a step of the high plane counts
  static constexpr float LARGEST = 127 * HIGH;   // of a row
  static Many many(const Element* p) { return load_bytes(p); }
  static One one(const Number* p, int length) { return {set1_bytes(load_i32(p)), set1_bytes(load_i32(p + length))}; }
  static Sum start(const int32_t* starts) { return {set1_i(starts[0]), set1_i(starts[1])}; }
  static Sum dot(Sum sum, One one, Many many) {
    return {dot_u8s8(sum.high, many, one.high), dot_u8s8(sum.low, many, one.low)};
  }
  static F value(Sum sum, const float* step) {
    return mul(fma(to_float(sum.high), set1(HIGH), to_float(sum.low)), set1(*step));
  }
};

// The numbers from..to - 1 of a row, both multiples of 16.
template <typename Type>
inline void make_ready(const float* x, int from, int to, const Ready<typename Type::Number>& row) {
  if constexpr (Type::PLANES == 1) {
    for (int i = from; i < to; i += LANES) Type::put(row.number + i, load(x + i));
  } else {
    F most = set1(0.0f), high_sum = set1(0.0f), low_sum = set1(0.0f);
    for (int i = from; i < to; i += LANES) most = max(most, abs(load(x + i)));
    const float largest = reduce_max(most), inverse = largest > 0.0f ? Type::LARGEST / largest : 0.0f;
    for (int i = from; i < to; i += LANES) {
      const F whole = round(mul(load(x + i), set1(inverse)));
      const F high = round(mul(whole, set1(1.0f / Type::HIGH))), low = fma(high, set1(-Type::HIGH), whole);
      store_s8(row.number + i, high), store_s8(row.number + row.length + i, low);
      high_sum = add(high_sum, high), low_sum = add(low_sum, low);
    }
    *row.step = largest / Type::LARGEST;
    row.starts[0] = -128 * static_cast<int32_t>(reduce_add(high_sum));
    row.starts[1] = -128 * static_cast<int32_t>(reduce_add(low_sum));
  }
}

}  // namespace whet::attention
