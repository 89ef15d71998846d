// The gradients of a selective scan: chunks from the last to the first. A chunk's states are computed again from the
// one that forward saved before it.
//
// With g[n] the gradient of state n after a token: g[n] += c[n] gy. The gradient of c[n] is h[n] gy, that of b[n] is
// g[n] delta u, and that of delta u is the sum of g[n] b[n]. Then g[n] becomes exp(delta a[n]) g[n], and that times the
// state before the token is the gradient of delta a[n].
//
// b and c are shared by channels. A bundle of strips adds up their gradients, and writes a part of its own; the caller
// adds the parts of bundles. How strips are bundled depends on the sizes alone, so that the sums do not depend on the
// number of threads.
#pragma once

#include <algorithm>

#include "forward.h"

namespace whet {
namespace selective_scan {

struct Gradients {
  View out;              // the gradient of out
  const float* last;     // the gradient of the last states, or null for zeros
  const float* y;        // as forward wrote them; null where there is no z
  const float* starts;
  float *u, *delta, *z;  // [batch][length][channels]; delta: or [batch][length][heads]
  float* initial;        // [batch][channels][states], or null
  float* a;              // [batch][channels][states], or [batch][channels]
  float* d;              // [batch][channels], or null
  float *b, *c;          // [batch][bundles][length][states]
};

constexpr int LEAST_STRIPS = 4, MOST_BUNDLES = 16;

// How the strips of a group are divided: bundles of whole heads (per_head), or of any strips.
struct Bundles {
  int unit, units, size, count;  // strips of a unit; units of a group; units of a bundle; bundles of a group

  explicit Bundles(const Problem& p) {
    unit = p.per_head ? p.strips_of_head() : 1;
    units = p.num_strips() / p.num_groups / unit;
    size = std::max((LEAST_STRIPS + unit - 1) / unit, (units + MOST_BUNDLES - 1) / MOST_BUNDLES);
    size = std::min(size, units);
    count = (units + size - 1) / size;
  }
  int first_strip(int bundle) const { return (bundle / count * units + bundle % count * size) * unit; }
  int num_strips(int bundle) const { return std::min(size, units - bundle % count * size) * unit; }
};

struct alignas(64) BackwardTile {
  float gy[CHUNK * LANES], gu[CHUNK * LANES], gdelta[CHUNK * LANES];
  float gdu[CHUNK * LANES];                      // of delta u
  float grate[CHUNK * LANES];                    // of delta a, in the sum that delta gets
  float head[CHUNK * LANES];                     // of a head's delta, all its strips
  float states[(CHUNK + 1) * BLOCK * LANES];     // before each token, and after the last
  float decays[CHUNK * BLOCK * LANES];
};

// Sums over channels of the gradients of b and of c, of a token and a block of states: b's from 0 on, c's from 8 on.
struct alignas(64) BlockSums {
  float b[LANES / 2], c[LANES / 2];
};

struct BackwardRoom {
  Tile tile;
  BackwardTile back;
  Floats rates, g, ga, gd;  // of each strip of all bundles that take turns
  Floats gbc;               // of b and of c: [CHUNK][blocks][lanes], see BlockSums
  Floats b, c;

  void fit(const Problem& p, int num_strips) {
    const size_t all = p.strip_states() * num_strips, lanes = static_cast<size_t>(LANES) * num_strips;
    rates.resize(p.per_head ? 0 : all);
    g.resize(all);
    ga.resize(p.per_head ? lanes : all), ga.zero();
    gd.resize(lanes), gd.zero();
    const size_t numbers = static_cast<size_t>(CHUNK) * p.num_states;
    b.resize(numbers), c.resize(numbers);
    gbc.resize(static_cast<size_t>(CHUNK) * num_blocks(p.num_states) * LANES);
  }
};

// The states and decays of NUM states over a chunk, again, from the states `starts` before it.
template <int NUM, bool PER_HEAD>
inline void repeat(int count, const Tile& tile, BackwardTile& back, const float* rates, Rows32 b, const float* starts,
                   const Upcoming& upcoming) {
  constexpr int WIDTH = NUM * LANES;
  F h[NUM];
#pragma GCC unroll 8
  for (int n = 0; n < NUM; n++) {
    h[n] = load(starts + n * LANES);
    store(back.states + n * LANES, h[n]);
  }
  for (int t = 0; t < count; t++, b.data += b.stride) {
    const F delta = load(tile.delta + t * LANES), du = load(tile.du + t * LANES);
    const F decay = load(tile.decay + t * LANES);
    float *after = back.states + (t + 1) * WIDTH, *decays = back.decays + t * WIDTH;
#pragma GCC unroll 8
    for (int n = 0; n < NUM; n++) {
      const F a = PER_HEAD ? decay : exp2_of_product(delta, load(rates + n * LANES));
      h[n] = fma(a, h[n], mul(du, set1(b.data[n])));
      store(after + n * LANES, h[n]);
      if (!PER_HEAD) store(decays + n * LANES, a);
    }
    upcoming.fetch(t);
  }
}

// NUM states over a chunk, back. g, ga, and the sums in `back` are brought up to date; `sums` are this block's of the
// first token, and `sums_stride` apart.
template <int NUM, bool PER_HEAD>
inline void back_block(int count, const Tile& tile, BackwardTile& back, const float* rates, Rows32 b, Rows32 c,
                       const float* starts, float* g, float* ga, BlockSums* sums, int sums_stride,
                       const Upcoming& inputs, const Upcoming& outputs) {
  constexpr int WIDTH = NUM * LANES;
  alignas(64) float shared[LANES * LANES] = {};  // what each channel adds to b's gradients and to c's
  repeat<NUM, PER_HEAD>(count, tile, back, rates, b, starts, inputs);
  b.data += b.stride * count, c.data += c.stride * count;
  F of_state[NUM], of_rate[NUM];
#pragma GCC unroll 8
  for (int n = 0; n < NUM; n++) of_state[n] = load(g + n * LANES), of_rate[n] = set1(0.0f);
  for (int t = count - 1; t >= 0; t--) {
    b.data -= b.stride, c.data -= c.stride;
    const int at = t * LANES;
    const F gy = load(back.gy + at), delta = load(tile.delta + at), du = load(tile.du + at);
    const F decay = load(tile.decay + at);
    F of_du = load(back.gdu + at), sum = load(back.grate + at);
    const float *before = back.states + t * WIDTH, *after = before + WIDTH, *decays = back.decays + t * WIDTH;
#pragma GCC unroll 8
    for (int n = 0; n < NUM; n++) {
      const F of = fma(gy, set1(c.data[n]), of_state[n]);
      store(shared + n * LANES, mul(of, du));
      store(shared + (n + LANES / 2) * LANES, mul(load(after + n * LANES), gy));
      of_du = fma(of, set1(b.data[n]), of_du);
      of_state[n] = mul(of, PER_HEAD ? decay : load(decays + n * LANES));
      const F exponent = mul(of_state[n], load(before + n * LANES));
      if (PER_HEAD) {
        sum = add(sum, exponent);
      } else {
        sum = fma(exponent, load(rates + n * LANES), sum);
        of_rate[n] = fma(exponent, delta, of_rate[n]);
      }
    }
    store(back.gdu + at, of_du), store(back.grate + at, sum);
    auto* summed = reinterpret_cast<float*>(sums + static_cast<size_t>(t) * sums_stride);
    store(summed, add(load(summed), sums_of_sixteen(shared)));
    outputs.fetch(t);
  }
#pragma GCC unroll 8
  for (int n = 0; n < NUM; n++) {
    store(g + n * LANES, of_state[n]);
    if (!PER_HEAD) store(ga + n * LANES, add(load(ga + n * LANES), of_rate[n]));
  }
}

// The gradients of y, of z and of d, and what y gives directly to u.
inline void back_from_output(const Problem& p, const Gradients& to, int b, const Strip& s, int first, int count,
                             const Tile& tile, BackwardTile& back, float* gd) {
  const F d = load_parameter(p, s, p.d), one = set1(1.0f);
  F of_d = load(gd);
  for (int t = 0; t < count; t++) {
    const int at = t * LANES;
    F gy = to.out.lanes(b, first + t, s.channel, s.width);
    if (p.z.data != nullptr) {
      const size_t place = (static_cast<size_t>(p.length) * b + first + t) * p.channels() + s.channel;
      const F z = p.z.lanes(b, first + t, s.channel, s.width), gate = sigmoid(z);
      const F slope = mul(gate, fma(z, sub(one, gate), one));
      store_part(to.z + place, mul(mul(gy, load_part(to.y + place, s.width, 0.0f)), slope), s.width);
      gy = mul(gy, mul(z, gate));
    }
    store(back.gy + at, gy);
    store(back.gu + at, mul(gy, d));
    of_d = fma(gy, load(tile.u + at), of_d);
  }
  store(gd, of_d);
}

// From the sums over states to the gradients of u and of delta.
inline void back_to_inputs(const Problem& p, const Gradients& to, int b, const Strip& s, int first, int count,
                           const Tile& tile, BackwardTile& back, float* ga) {
  const F zero = set1(0.0f), least = set1(p.delta_min), most = set1(p.delta_max);
  const bool is_clamped = p.delta_min > -INFINITY || p.delta_max < INFINITY;
  const F rate = set1(p.per_head ? p.a[s.head] : LN_2);
  F of_rate = zero;
  for (int t = 0; t < count; t++) {
    const int at = t * LANES;
    const size_t place = (static_cast<size_t>(p.length) * b + first + t) * p.channels() + s.channel;
    const F of_du = load(back.gdu + at), exponents = load(back.grate + at), delta = load(tile.delta + at);
    store_part(to.u + place, fma(of_du, delta, load(back.gu + at)), s.width);
    if (p.per_head) of_rate = fma(exponents, delta, of_rate);
    F of_delta = fma(exponents, rate, mul(of_du, load(tile.u + at)));
    const F raw = load(tile.raw + at);
    if (is_clamped) {
      const F unclamped = p.softplus ? softplus(raw) : raw;
      of_delta = add_at_least(zero, add_at_least(zero, of_delta, unclamped, least), most, unclamped);
    }
    if (p.softplus) of_delta = mul(of_delta, sigmoid(raw));
    if (p.per_head)
      store(back.head + at, add(load(back.head + at), of_delta));
    else
      store_part(to.delta + place, of_delta, s.width);
  }
  if (p.per_head) store(ga, add(load(ga), of_rate));
}

// The gradients of out, and the states before the chunk, that a strip reads of a chunk.
inline Upcoming next_saved(const Problem& p, const Gradients& to, int b, const Strip& s, int chunk) {
  const size_t saved = (static_cast<size_t>(b) * p.num_chunks() + chunk) * p.num_strips() + s.index;
  return {to.out.place(b, chunk * CHUNK, s.channel), to.out.row_bytes(), to.starts + saved * p.strip_states(),
          sizeof(float) * LANES};
}

// The gradients of u and delta that a strip writes of a chunk.
inline Upcoming written(const Problem& p, const Gradients& to, int b, const Strip& s, int first) {
  const size_t at = (static_cast<size_t>(p.length) * b + first) * p.channels() + s.channel;
  const size_t stride = sizeof(float) * p.channels();
  return {to.u + at, stride, p.per_head ? to.u + at : to.delta + at, stride};
}

// One strip of a bundle over one chunk.
inline void back_strip(const Problem& p, const Gradients& to, int b, const Strip& s, int place, int chunk,
                       BackwardRoom& room) {
  const int first = chunk * CHUNK, count = p.length - first < CHUNK ? p.length - first : CHUNK;
  const size_t all = p.strip_states() * place, lanes = static_cast<size_t>(LANES) * place;
  BackwardTile& back = room.back;
  prepare(p, b, s, first, count, room.tile);
  back_from_output(p, to, b, s, first, count, room.tile, back, room.gd.data() + lanes);
  std::memset(back.gdu, 0, sizeof back.gdu), std::memset(back.grate, 0, sizeof back.grate);
  const Rows32 rows_b(p, p.b, b, s.group, first, count, room.b.data());
  const Rows32 rows_c(p, p.c, b, s.group, first, count, room.c.data());
  const size_t saved = (static_cast<size_t>(b) * p.num_chunks() + chunk) * p.num_strips() + s.index;
  const float* starts = to.starts + saved * p.strip_states();
  float* ga = room.ga.data() + (p.per_head ? lanes : all);
  const int stride = num_blocks(p.num_states);
  auto* sums = reinterpret_cast<BlockSums*>(room.gbc.data());
  each_block(p.num_states, [&](auto block, int n) {
    Rows32 bn = rows_b, cn = rows_c;
    bn.data += n, cn.data += n;
    const size_t at = static_cast<size_t>(n) * LANES;
    float* g = room.g.data() + all + at;
    const bool fetches = n == 0 && chunk > 0;
    const Upcoming inputs = fetches ? next_inputs(p, b, s, first - CHUNK) : Upcoming();
    Upcoming outputs = n > 0 ? written(p, to, b, s, first) : Upcoming();
    if (fetches) outputs = next_saved(p, to, b, s, chunk - 1);
    if (p.per_head)
      back_block<block, true>(count, room.tile, back, nullptr, bn, cn, starts + at, g, nullptr, sums, stride,
                              inputs, outputs);
    else
      back_block<block, false>(count, room.tile, back, room.rates.data() + all + at, bn, cn, starts + at, g, ga + at,
                               sums, stride, inputs, outputs);
    sums++;
  });
  back_to_inputs(p, to, b, s, first, count, room.tile, back, ga);
}

// One lane sum a token: the gradient of a head's delta.
inline void write_head(const Problem& p, const Gradients& to, int b, int head, int first, int count,
                       const BackwardTile& back) {
  for (int t = 0; t < count; t++)
    to.delta[(static_cast<size_t>(p.length) * b + first + t) * p.num_heads + head] =
        reduce_add(load(back.head + t * LANES));
}

// A bundle's part of the gradients of b and of c.
inline void write_sums(const Problem& p, int count, const BlockSums* sums, float* b, float* c) {
  for (int t = 0; t < count; t++, b += p.num_states, c += p.num_states)
    each_block(p.num_states, [&](auto block, int n) {
      std::memcpy(b + n, sums->b, sizeof(float) * block), std::memcpy(c + n, sums->c, sizeof(float) * block);
      sums++;
    });
}

// One bundle over one chunk. `first_strip` is the one whose states are the first of the room's.
inline void back_bundle(const Problem& p, int b, int bundle, int first_strip, int chunk, const Bundles& bundles,
                        const Gradients& to, BackwardRoom& room) {
  const int first = chunk * CHUNK, count = p.length - first < CHUNK ? p.length - first : CHUNK;
  room.gbc.zero();
  const int begin = bundles.first_strip(bundle);
  for (int i = begin; i < begin + bundles.num_strips(bundle); i++) {
    const Strip s(p, i);
    const bool begins = s.index % bundles.unit == 0, ends = (s.index + 1) % bundles.unit == 0;
    if (p.per_head && begins) std::memset(room.back.head, 0, sizeof room.back.head);
    back_strip(p, to, b, s, i - first_strip, chunk, room);
    if (p.per_head && ends) write_head(p, to, b, s.head, first, count, room.back);
  }
  const size_t all_bundles = static_cast<size_t>(bundles.count) * p.num_groups;
  const size_t at = ((all_bundles * b + bundle) * p.length + first) * p.num_states;
  write_sums(p, count, reinterpret_cast<const BlockSums*>(room.gbc.data()), to.b + at, to.c + at);
}

// The bundles begin..end - 1 of one sequence. They take turns, a chunk each: what they read and write of a token lies
// side by side, on the same pages of memory.
inline void backward(const Problem& p, int b, int begin, int end, const Bundles& bundles, const Gradients& to,
                     BackwardRoom& room) {
  const int first_strip = bundles.first_strip(begin);
  const int num_strips = bundles.first_strip(end - 1) + bundles.num_strips(end - 1) - first_strip;
  room.fit(p, num_strips);
  for (int i = 0; i < num_strips; i++) {
    const Strip s(p, first_strip + i);
    if (!p.per_head) load_rates(p, s, room.rates.data() + p.strip_states() * i);
    load_states(p, b, s, to.last, room.g.data() + p.strip_states() * i);
  }
  for (int chunk = p.num_chunks() - 1; chunk >= 0; chunk--)
    for (int bundle = begin; bundle < end; bundle++) back_bundle(p, b, bundle, first_strip, chunk, bundles, to, room);
  for (int i = 0; i < num_strips; i++) {
    const Strip s(p, first_strip + i);
    const size_t at = static_cast<size_t>(p.channels()) * b + s.channel;
    if (to.initial != nullptr) store_states(p, b, s, room.g.data() + p.strip_states() * i, to.initial);
    if (to.d != nullptr) store_part(to.d + at, load(room.gd.data() + LANES * i), s.width);
    if (p.per_head)
      store_part(to.a + at, load(room.ga.data() + LANES * i), s.width);
    else
      store_states(p, b, s, room.ga.data() + p.strip_states() * i, to.a);
  }
}

}  // namespace selective_scan
}  // namespace whet
