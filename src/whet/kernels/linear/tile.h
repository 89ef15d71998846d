// A tile: MR rows times one panel of NR strips, all of k in registers.
#pragma once

#include <utility>

#include "weights.h"

namespace whet {

// Rows that a tile has at the most: with 4 strips, 24 of the 32 registers of AVX-512 hold sums; unpacking s4 needs 16.
constexpr int max_rows(Kind kind) { return WHET_ISA != 512 ? 1 : kind == Kind::s4 ? 3 : 6; }
// Rows of a tile of s4 that is two strips wide: 16 registers hold sums, and what is unpacked serves all of them.
constexpr int WIDE_ROWS = 8, WIDE_STRIPS = 2;
// Bytes; what the hardware's own prefetchers leave.
constexpr int AHEAD = 6144, AHEAD_OF_FLOATS = 1536;

// What to fetch into the cache while a tile is computed: at each step of k a line at `at + offset[n]` for every strip,
// then `at` moves on.
struct Ahead {
  const uint8_t* at;
  size_t stride;
  size_t offset[STRIPS];
  bool is_spread = false;  // one line a step at the most, whatever the strips
  size_t header = 0;       // bytes to pass over at each group of s4
  int left = 0;            // steps until `at` goes on at `then`; 0: it does not
  const uint8_t* then = nullptr;

  void move() {
    at += stride;
    if (--left == 0) at = then;
  }
  // What comes next of the panel itself. Towards its end, the first lines of the one after it, if there is one: this made
  // f32 and bf16 slower, which move more bytes.
  static Ahead of_panel(Kind kind, const uint8_t* w, int num_strips, int num_steps, const uint8_t* next) {
    const size_t stride = 64 * num_strips;
    if (kind == Kind::f32 || kind == Kind::bf16) return {w + AHEAD_OF_FLOATS, stride, {0, 64, 128, 192}};
    const int early = static_cast<int>(AHEAD / stride), left = next == nullptr ? 0 : num_steps - early;
    const uint8_t* at = next != nullptr && left <= 0 ? next : w + AHEAD;
    return {at, stride, {0, 64, 128, 192}, false, kind == Kind::s4 ? static_cast<size_t>(LANES * num_strips) : 0, left, next};
  }
  // Where a panel serves `passes` tiles, these wait for arithmetic, and memory would lie idle: each fetches its share of
  // the next panel, in up to four runs of `steps` lines.
  static Ahead of_next(const uint8_t* next, size_t bytes, int steps, int pass, int passes) {
    const int num_runs = static_cast<int>((bytes / 64 + steps / 2) / steps), shares = passes < num_runs ? passes : num_runs;
    Ahead ahead{next, 64, {}};
    for (int n = 0; n < STRIPS; n++) {
      const int run = pass % shares + n * shares;
      ahead.offset[n] = run < num_runs ? size_t{64} * steps * run : ahead.offset[0];
    }
    return ahead;
  }
  // With many tiles each fetches an equal share, a line every few steps: more at once would be in the way of what the
  // tile itself waits for.
  static Ahead spread(const uint8_t* next, size_t bytes, int steps, int pass, int passes) {
    const size_t share = (bytes + passes - 1) / passes;
    return {next + share * pass, (share + steps - 1) / steps, {}, true};
  }
};

// What is written as loops over an array of registers goes through memory at the loops' ends: the compiler unrolls them
// too late to see that each index is a constant.
template <typename Function, int... INDEX>
inline __attribute__((always_inline)) void unrolled(Function function, std::integer_sequence<int, INDEX...>) {
  (function(std::integral_constant<int, INDEX>()), ...);
}
template <int N, typename Function>
inline __attribute__((always_inline)) void unrolled(Function function) {
  unrolled(function, std::make_integer_sequence<int, N>());
}

template <int MR, int NR>
struct Product {
  // y[MR][NR * 16] = rows * weights, with scales and bias
  static void f32(const uint8_t* w, Ahead ahead, const Rows& rows, int row, int k, F (&sum)[MR][NR]) {
    const float* a = reinterpret_cast<const float*>(rows.data + rows.stride * row);
    const size_t stride = rows.stride / 4;
    for (int m = 0; m < MR; m++)
      for (int n = 0; n < NR; n++) sum[m][n] = set1(0.0f);
    for (int i = 0; i < k; i++, w += 64 * NR) {
      F b[NR];
      for (int n = 0; n < NR; n++) b[n] = load(reinterpret_cast<const float*>(w) + LANES * n);
      for (int n = 0; n < NR; n++) prefetch(ahead.at + ahead.offset[n]);
      ahead.at += ahead.stride;
      for (int m = 0; m < MR; m++) {
        const F x = set1(a[stride * m + i]);
        for (int n = 0; n < NR; n++) sum[m][n] = fma(x, b[n], sum[m][n]);
      }
    }
  }

  static void bf16(const uint8_t* w, Ahead ahead, const Rows& rows, int row, int k, F (&sum)[MR][NR]) {
    const uint8_t* a = rows.data + rows.stride * row;
    for (int m = 0; m < MR; m++)
      for (int n = 0; n < NR; n++) sum[m][n] = set1(0.0f);
    for (int i = 0; i < k; i += 2, w += 64 * NR) {
      B b[NR];
      for (int n = 0; n < NR; n++) b[n] = load_bytes(w + 64 * n);
      for (int n = 0; n < NR; n++) prefetch(ahead.at + ahead.offset[n]);
      ahead.at += ahead.stride;
      for (int m = 0; m < MR; m++) {
        const B x = set1_bytes(load_i32(a + rows.stride * m + 2 * i));
        for (int n = 0; n < NR; n++) sum[m][n] = dot_bf16(sum[m][n], b[n], x);
      }
    }
  }

  static void s8(const uint8_t* w, const Ahead& ahead, const Rows& rows, int row, int k, I (&sum)[MR][NR]) {
    if (ahead.is_spread)
      s8_fetching<1>(w, ahead, rows, row, k, sum);
    else
      s8_fetching<NR>(w, ahead, rows, row, k, sum);
  }

  // The strips `first`.. of a panel of `strips`.
  static void s4(const uint8_t* w, int strips, int first, Ahead ahead, const Rows& rows, int row, int k,
                 I (&sum)[MR][NR]) {
    const uint8_t* a = rows.data + rows.stride * row;
    start(rows, row, sum);
    for (int group = 0; group < k; group += GROUP) {
      B r[NR], zero[NR];
      for (int n = 0; n < NR; n++) {
        r[n] = spread_bytes(w + LANES * (first + n));
        zero[n] = sub_bytes(set1_bytes(int32_t(0x80808080u)), eight_times(r[n]));
      }
      w += LANES * strips, ahead.at += ahead.header;
      for (int i = group; i < group + GROUP; i += 8, w += 64 * strips) {
        B low[NR], high[NR];
        for (int n = 0; n < STRIPS; n++) prefetch(ahead.at + ahead.offset[n]);
        ahead.move();
        for (int n = 0; n < NR; n++) {
          const B both = load_bytes(w + 64 * (first + n));
          low[n] = add_bytes(mul_small_bytes(low_nibbles(both), r[n]), zero[n]);
          high[n] = add_bytes(mul_small_bytes(high_nibbles(both), r[n]), zero[n]);
        }
        step(low, a, rows.stride, i, sum);
        step(high, a, rows.stride, i + 4, sum);
      }
    }
  }

 private:
  template <int LINES>
  static void s8_fetching(const uint8_t* w, Ahead ahead, const Rows& rows, int row, int k, I (&sum)[MR][NR]) {
    const uint8_t* a = rows.data + rows.stride * row;
    start(rows, row, sum);
    for (int i = 0; i < k; i += 4, w += 64 * NR) {
      B b[NR];
      unrolled<NR>([&](auto n) { b[n] = load_bytes(w + 64 * n); });
      for (int n = 0; n < LINES; n++) prefetch(ahead.at + ahead.offset[n]);
      ahead.move();
      step(b, a, rows.stride, i, sum);
    }
  }
  // Weights are kept as q + 128, so 128 times the sum of the activations is too much.
  static void start(const Rows& rows, int row, I (&sum)[MR][NR]) {
    unrolled<MR>([&](auto m) {
      const I first = set1_i(-128 * rows.sum[row + m]);
      unrolled<NR>([&](auto n) { sum[m][n] = first; });
    });
  }
  static void step(const B (&b)[NR], const uint8_t* a, size_t stride, int i, I (&sum)[MR][NR]) {
    unrolled<MR>([&](auto m) {
      const B x = set1_bytes(load_i32(a + stride * m + i));
      unrolled<NR>([&](auto n) { sum[m][n] = dot_u8s8(sum[m][n], b[n], x); });
    });
  }
};

// A panel of s4 as one of s8, for many rows: unpacked once, read by all.
template <int NR>
void unpack_s4(const uint8_t* w, int k, uint8_t* to) {
  for (int group = 0; group < k; group += GROUP) {
    B r[NR], zero[NR];
    for (int n = 0; n < NR; n++) {
      r[n] = spread_bytes(w + LANES * n);
      zero[n] = sub_bytes(set1_bytes(int32_t(0x80808080u)), eight_times(r[n]));
    }
    w += LANES * NR;
    for (int i = 0; i < GROUP; i += 8, w += 64 * NR, to += 128 * NR) {
      for (int n = 0; n < NR; n++) {
        const B both = load_bytes(w + 64 * n);
        prefetch(w + AHEAD + 64 * n);
        store_bytes(to + 64 * n, add_bytes(mul_small_bytes(low_nibbles(both), r[n]), zero[n]));
        store_bytes(to + 64 * (NR + n), add_bytes(mul_small_bytes(high_nibbles(both), r[n]), zero[n]));
      }
    }
  }
}

}  // namespace whet
