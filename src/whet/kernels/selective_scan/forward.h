// A selective scan forward: sixteen channels a register, their states in registers over a chunk of tokens.
//
// Each token is added to the states after the one before it, and y sums states in the order of n, in blocks. So the
// results are the same, bit for bit, however tokens are spread over calls.
#pragma once

#include <type_traits>

#include "problem.h"

namespace whet {
namespace selective_scan {

struct Results {
  void* out;  // [batch][length][channels], float32 or bfloat16
  int32_t out_is_bf16;
  float* last;    // the states after the last token, [batch][channels][states]
  float* y;       // out before the gate, [batch][length][channels], or null
  float* starts;  // the states before each chunk, [batch][chunks][strips][states][lanes], or null
};

// NUM states over `count` tokens: `states` are brought up to date, and y gets what they add.
template <int NUM, bool PER_HEAD>
inline void advance(int count, const Tile& tile, const float* rates, Rows32 b, Rows32 c, float* states, float* y,
                    const Upcoming& upcoming) {
  F h[NUM];
#pragma GCC unroll 8
  for (int n = 0; n < NUM; n++) h[n] = load(states + n * LANES);
  for (int t = 0; t < count; t++) {
    const F delta = load(tile.delta + t * LANES), du = load(tile.du + t * LANES);
    const F decay = load(tile.decay + t * LANES);
    F sum = load(y + t * LANES);
#pragma GCC unroll 8
    for (int n = 0; n < NUM; n++) {
      const F a = PER_HEAD ? decay : exp2_of_product(delta, load(rates + n * LANES));
      h[n] = fma(a, h[n], mul(du, set1(b.data[n])));
      sum = fma(h[n], set1(c.data[n]), sum);
    }
    store(y + t * LANES, sum);
    upcoming.fetch(t);
    b.data += b.stride, c.data += c.stride;
  }
#pragma GCC unroll 8
  for (int n = 0; n < NUM; n++) store(states + n * LANES, h[n]);
}

// All states of a strip over `count` tokens.
inline void advance_all(const Problem& p, int count, const Tile& tile, const float* rates, Rows32 b, Rows32 c,
                        float* states, float* y, const Upcoming& upcoming) {
  each_block(p.num_states, [&](auto block, int n) {
    Rows32 bn = b, cn = c;
    bn.data += n, cn.data += n;
    const size_t at = static_cast<size_t>(n) * LANES;
    const Upcoming first = n == 0 ? upcoming : Upcoming();
    if (p.per_head)
      advance<block, true>(count, tile, nullptr, bn, cn, states + at, y, first);
    else
      advance<block, false>(count, tile, rates + at, bn, cn, states + at, y, first);
  });
}

struct Room {
  Tile tile;
  Floats states, rates;  // of each strip
  Floats b, c;

  void fit(const Problem& p, int num_strips) {
    states.resize(p.strip_states() * num_strips);
    rates.resize(p.per_head ? 0 : p.strip_states() * num_strips);
    b.resize(static_cast<size_t>(CHUNK) * p.num_states);
    c.resize(static_cast<size_t>(CHUNK) * p.num_states);
  }
};

// From sums over states to outputs, for the tokens of a tile.
inline void finish(const Problem& p, int b, const Strip& s, int first, int count, const Tile& tile, const Results& to) {
  const F d = load_parameter(p, s, p.d);
  for (int t = 0; t < count; t++) {
    const size_t at = (static_cast<size_t>(p.length) * b + first + t) * p.channels() + s.channel;
    F y = load(tile.y + t * LANES);
    if (p.d != nullptr) y = fma(d, load(tile.u + t * LANES), y);
    if (to.y != nullptr) store_part(to.y + at, y, s.width);
    if (p.z.data != nullptr) y = mul(y, silu(p.z.lanes(b, first + t, s.channel, s.width)));
    if (to.out_is_bf16)
      store_part(static_cast<uint16_t*>(to.out) + at, y, s.width);
    else
      store_part(static_cast<float*>(to.out) + at, y, s.width);
  }
}

// The states of a strip over `count` tokens from `first` on, at most a chunk. The tile's y gets the sums over states.
inline void advance_tokens(const Problem& p, int b, const Strip& s, int first, int count, const float* rates,
                           float* states, Room& room) {
  prepare(p, b, s, first, count, room.tile);
  std::memset(room.tile.y, 0, sizeof(float) * count * LANES);
  const Rows32 rows_b(p, p.b, b, s.group, first, count, room.b.data());
  const Rows32 rows_c(p, p.c, b, s.group, first, count, room.c.data());
  advance_all(p, count, room.tile, rates, rows_b, rows_c, states, room.tile.y, next_inputs(p, b, s, first + count));
}

// One strip over one chunk.
inline void forward_strip(const Problem& p, int b, const Strip& s, int chunk, const float* rates, float* states,
                          const Results& to, Room& room) {
  const int first = chunk * CHUNK, count = p.length - first < CHUNK ? p.length - first : CHUNK;
  if (to.starts != nullptr) {
    const size_t at = (static_cast<size_t>(b) * p.num_chunks() + chunk) * p.num_strips() + s.index;
    std::memcpy(to.starts + at * p.strip_states(), states, sizeof(float) * p.strip_states());
  }
  advance_tokens(p, b, s, first, count, rates, states, room);
  finish(p, b, s, first, count, room.tile, to);
}

// The strips begin..end - 1 of one sequence. They take turns, a chunk each: what they read and write of a token lies
// side by side, on the same pages of memory.
inline void forward(const Problem& p, int b, int begin, int end, const Results& to, Room& room) {
  room.fit(p, end - begin);
  const auto of_strip = [&](Floats& floats, int i) { return floats.data() + p.strip_states() * (i - begin); };
  for (int i = begin; i < end; i++) {
    if (!p.per_head) load_rates(p, Strip(p, i), of_strip(room.rates, i));
    load_states(p, b, Strip(p, i), p.initial, of_strip(room.states, i));
  }
  for (int chunk = 0; chunk < p.num_chunks(); chunk++)
    for (int i = begin; i < end; i++)
      forward_strip(p, b, Strip(p, i), chunk, p.per_head ? nullptr : of_strip(room.rates, i), of_strip(room.states, i),
                    to, room);
  for (int i = begin; i < end; i++) store_states(p, b, Strip(p, i), of_strip(room.states, i), to.last);
}

}  // namespace selective_scan
}  // namespace whet
