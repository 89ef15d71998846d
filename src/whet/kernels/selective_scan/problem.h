// What a selective scan reads: the tensors of one call, and how channels, heads and groups share them.
//
// Of each channel d of a head, with N states: h[n] = exp(delta a[n]) h[n] + delta u b[n], y = sum of c[n] h[n], then
// y + d u, times silu(z). Mamba-1 is one head whose channels have a delta and rates a of their own; in Mamba-2
// (per_head) a head has one delta and one rate. b and c belong to a group of heads. Sources: Gu and Dao, 2023,
// arXiv:2312.00752; Dao and Gu, 2024, arXiv:2405.21060.
#pragma once

#include "../simd/parts.h"

namespace whet {
namespace selective_scan {

// Tokens between two states that are saved for the backward pass, which computes those between them again.
constexpr int CHUNK = 32;

// A tensor [batch][length][numbers] of float32 or bfloat16, whose rows lie anywhere.
struct View {
  const void* data;                  // null: there is none
  int64_t batch_stride, row_stride;  // in numbers
  int32_t is_bf16;

  size_t row(int b, int t) const { return static_cast<size_t>(batch_stride * b + row_stride * t); }
  // `count` numbers of a row from `column` on; the other lanes are 0.
  F lanes(int b, int t, int column, int count) const {
    const size_t at = row(b, t) + column;
    if (is_bf16) return load_part(static_cast<const uint16_t*>(data) + at, count, 0.0f);
    return load_part(static_cast<const float*>(data) + at, count, 0.0f);
  }
  const void* place(int b, int t, int column) const {
    const size_t at = row(b, t) + column;
    return is_bf16 ? static_cast<const void*>(static_cast<const uint16_t*>(data) + at)
                   : static_cast<const float*>(data) + at;
  }
  size_t row_bytes() const { return row_stride * (is_bf16 ? sizeof(uint16_t) : sizeof(float)); }
  float number(int b, int t, int column) const {
    const size_t at = row(b, t) + column;
    return is_bf16 ? widen(static_cast<const uint16_t*>(data)[at]) : static_cast<const float*>(data)[at];
  }
};

struct Problem {
  int32_t batch, length, num_heads, head_dim, num_groups, num_states;
  int32_t per_head;  // one delta, one rate, one d and one bias a head
  int32_t softplus;  // of delta, after its bias
  float delta_min, delta_max;  // delta is clamped to them
  View u, delta, b, c, z;      // z may be null
  const float* a;              // [channels][states], or [heads]
  const float *d, *delta_bias; // [channels], or [heads]; may be null
  const float* initial;        // [batch][channels][states], or null for zeros

  int channels() const { return num_heads * head_dim; }
  int strips_of_head() const { return (head_dim + LANES - 1) / LANES; }
  int num_strips() const { return num_heads * strips_of_head(); }
  int num_chunks() const { return (length + CHUNK - 1) / CHUNK; }
  size_t strip_states() const { return static_cast<size_t>(num_states) * LANES; }
};

// Up to sixteen channels of one head, one a lane.
struct Strip {
  int index, head, group, channel, width;

  Strip(const Problem& p, int index)
      : index(index), head(index / p.strips_of_head()), group(head / (p.num_heads / p.num_groups)) {
    const int first = index % p.strips_of_head() * LANES;
    channel = head * p.head_dim + first;
    width = p.head_dim - first < LANES ? p.head_dim - first : LANES;
  }
};

// Numbers of one strip over a chunk of tokens, sixteen lanes a token.
struct alignas(64) Tile {
  float u[CHUNK * LANES], raw[CHUNK * LANES];  // raw: delta before softplus
  float delta[CHUNK * LANES], du[CHUNK * LANES], decay[CHUNK * LANES];
  float y[CHUNK * LANES];
};

constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;

// Of a strip's channels, rates in the unit of a power of 2, [states][lanes].
inline void load_rates(const Problem& p, const Strip& s, float* rates) {
  for (int n = 0; n < p.num_states; n++)
    for (int i = 0; i < LANES; i++)
      rates[n * LANES + i] =
          i < s.width ? LOG2_E * p.a[static_cast<size_t>(s.channel + i) * p.num_states + n] : 0.0f;
}

// States of a strip, [states][lanes], from and to [batch][channels][states].
inline void load_states(const Problem& p, int b, const Strip& s, const float* from, float* states) {
  std::memset(states, 0, sizeof(float) * p.strip_states());
  if (from == nullptr) return;
  const float* at = from + (static_cast<size_t>(p.channels()) * b + s.channel) * p.num_states;
  for (int i = 0; i < s.width; i++)
    for (int n = 0; n < p.num_states; n++) states[n * LANES + i] = at[static_cast<size_t>(i) * p.num_states + n];
}
inline void store_states(const Problem& p, int b, const Strip& s, const float* states, float* to) {
  float* at = to + (static_cast<size_t>(p.channels()) * b + s.channel) * p.num_states;
  for (int i = 0; i < s.width; i++)
    for (int n = 0; n < p.num_states; n++) at[static_cast<size_t>(i) * p.num_states + n] = states[n * LANES + i];
}

// Parameters that are numbers of a channel or of a head.
inline F load_parameter(const Problem& p, const Strip& s, const float* from) {
  if (from == nullptr) return set1(0.0f);
  return p.per_head ? set1(from[s.head]) : load_part(from + s.channel, s.width, 0.0f);
}

// Fill in a tile but for y, for `count` tokens from `first` on.
inline void prepare(const Problem& p, int b, const Strip& s, int first, int count, Tile& tile) {
  const F bias = load_parameter(p, s, p.delta_bias), rate = set1(p.per_head ? LOG2_E * p.a[s.head] : 0.0f);
  const F least = set1(p.delta_min), most = set1(p.delta_max);
  for (int t = 0; t < count; t++) {
    const int at = t * LANES;
    const F u = p.u.lanes(b, first + t, s.channel, s.width);
    const F given = p.per_head ? set1(p.delta.number(b, first + t, s.head))
                               : p.delta.lanes(b, first + t, s.channel, s.width);
    const F raw = add(given, bias);
    const F delta = min(most, max(least, p.softplus ? softplus(raw) : raw));
    store(tile.u + at, u), store(tile.raw + at, raw), store(tile.delta + at, delta);
    store(tile.du + at, mul(delta, u));
    if (p.per_head) store(tile.decay + at, exp2_of_product(delta, rate));
  }
}

// Rows of b or of c in float32: the tensor's own, or a copy.
struct Rows32 {
  const float* data;
  size_t stride;

  Rows32(const Problem& p, const View& view, int b, int group, int first, int count, float* room) {
    const size_t at = view.row(b, first) + static_cast<size_t>(group) * p.num_states;
    if (!view.is_bf16) {
      data = static_cast<const float*>(view.data) + at, stride = static_cast<size_t>(view.row_stride);
      return;
    }
    const uint16_t* from = static_cast<const uint16_t*>(view.data) + at;
    for (int t = 0; t < count; t++)
      for (int n = 0; n < p.num_states; n++)
        room[t * p.num_states + n] = widen(from[static_cast<size_t>(view.row_stride) * t + n]);
    data = room, stride = static_cast<size_t>(p.num_states);
  }
};

// Lines of two tensors that a strip needs next, one of each a token. They lie too far apart for the processor to
// foresee, and are fetched one by one while a chunk is computed.
struct Upcoming {
  const void* one = nullptr;
  size_t one_stride = 0;  // bytes
  const void* other = nullptr;
  size_t other_stride = 0;

  void fetch(int t) const {
    prefetch(static_cast<const char*>(one) + one_stride * t);
    prefetch(static_cast<const char*>(other) + other_stride * t);
  }
};

// Those of u and delta (or z) of the tokens from `first` on, if there are such.
inline Upcoming next_inputs(const Problem& p, int b, const Strip& s, int first) {
  if (first < 0 || first >= p.length) return {};
  const View& other = p.per_head ? (p.z.data != nullptr ? p.z : p.u) : p.delta;
  return {p.u.place(b, first, s.channel), p.u.row_bytes(), other.place(b, first, s.channel), other.row_bytes()};
}

// States whose sums lie in registers at once. A call goes over them in blocks, always in the same order.
constexpr int BLOCK = WHET_ISA == 512 ? 8 : 4;

// Call part(block, first): blocks of 8 states (or 4), then 4, 2 and 1; `block` is a constant.
template <typename Part>
inline void each_block(int num_states, Part part) {
  int n = 0;
  for (; n + BLOCK <= num_states; n += BLOCK) part(std::integral_constant<int, BLOCK>(), n);
  if (BLOCK > 4 && n + 4 <= num_states) part(std::integral_constant<int, 4>(), n), n += 4;
  if (n + 2 <= num_states) part(std::integral_constant<int, 2>(), n), n += 2;
  if (n < num_states) part(std::integral_constant<int, 1>(), n);
}

inline int num_blocks(int num_states) {
  int count = 0;
  each_block(num_states, [&](auto, int) { count++; });
  return count;
}

}  // namespace selective_scan
}  // namespace whet
