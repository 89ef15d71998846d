// A tile of attention: some query rows that share a key-value head, against one chunk of keys at an absolute place.
//
// What a row computes does not depend on the rows beside it: each sum has its own register and runs over head_dim or
// over keys in order, a chunk's maximum is the row's own, and keys that a row does not see weigh exactly 0.
#pragma once

#include "cache.h"

namespace whet::attention {

constexpr int CHUNK = 128;  // keys
constexpr int BLOCKS = CHUNK / BLOCK;
constexpr int MAX_ROWS = WHET_ISA == 512 ? 6 : 2;  // of a tile; with WIDE, as many sums as there are registers for
constexpr int WIDE = WHET_ISA == 512 ? 4 : 2;      // blocks, or 16 dimensions, at once
constexpr float NOTHING = -1.0e30f;                // the score of a key that is not seen, the maximum of none

// How numbers meet in a product: each lane takes a pack of both sides.
struct Floats {
  using Element = float;
  using Vector = F;
  static constexpr int PACK = 1;
  static Vector many(const Element* p) { return load(p); }
  static Vector one(const Element* p) { return set1(*p); }
  static F dot(F sum, Vector one, Vector many) { return fma(one, many, sum); }
  static void put(Element* p, F x) { store(p, x); }
};
struct Bf16s {
  using Element = uint16_t;
  using Vector = B;
  static constexpr int PACK = 2;
  static Vector many(const Element* p) { return load_bytes(p); }
  static Vector one(const Element* p) { return set1_bytes(load_i32(p)); }
  static F dot(F sum, Vector one, Vector many) { return dot_bf16(sum, many, one); }
  static void put(Element* p, F x) { store_bf16(p, x); }
};

// The blocks of a chunk as the products read them, and what of the cache is to be fetched meanwhile: as many blocks of
// the values of this chunk or of the next one's keys or values, at `bytes` a number.
template <typename Type>
struct Chunk {
  using Element = typename Type::Element;
  const Element *keys[BLOCKS], *values[BLOCKS];
  const uint8_t *while_scoring[BLOCKS], *while_mixing[BLOCKS];
  int bytes;
  const float *key_scales[BLOCKS], *value_scales[BLOCKS];  // of int8
  bool scaled;
};

// 2^x for x <= 1 or so, to 2e-7; exactly 1 at 0, exactly 0 far below. Minimax polynomial for 2^r, |r| <= 1/2.
inline F power2(F x) {
  const F n = round(x), r = sub(x, n);
  F p = set1(0.00132647269f);
  p = fma(p, r, set1(0.00967151266f));
  p = fma(p, r, set1(0.0555073374f));
  p = fma(p, r, set1(0.240222421f));
  p = fma(p, r, set1(0.693146978f));
  p = fma(p, r, set1(1.0f));
  return scale_down(p, n);
}

// scores [R][CHUNK], of the keys of the blocks from..from + C - 1.
template <typename Type, int R, int C, bool AHEAD>
void score(const typename Type::Element* q, int head_dim, const Chunk<Type>& chunk, int from, float* scores) {
  const auto* const* keys = chunk.keys + from;
  const uint8_t* const* later = chunk.while_scoring + from;
  F sum[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sum[r][c] = set1(0.0f);
  for (int d = 0; d < head_dim; d += Type::PACK) {
    typename Type::Vector k[C];
    for (int c = 0; c < C; c++) k[c] = Type::many(keys[c] + d * BLOCK);
    if constexpr (AHEAD)
      for (int c = 0; c < C; c++) prefetch(later[c] + d * BLOCK * chunk.bytes);
    for (int r = 0; r < R; r++) {
      const auto x = Type::one(q + r * head_dim + d);
      for (int c = 0; c < C; c++) sum[r][c] = Type::dot(sum[r][c], x, k[c]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(scores + r * CHUNK + (from + c) * BLOCK, sum[r][c]);
}

// out [R][head_dim] = old * out + fresh * (weights [R][CHUNK] times values), of the dimensions column.. (16 * D of them)
// and the blocks from..to - 1; without `old` the product alone.
template <typename Type, int R, int D, bool AHEAD>
void mix(const typename Type::Element* weights, int head_dim, const Chunk<Type>& chunk, int from, int to, int column,
         const float* old, const float* fresh, float* out) {
  constexpr int PACK = Type::PACK;
  F sum[R][D];
  for (int r = 0; r < R; r++)
    for (int d = 0; d < D; d++) sum[r][d] = set1(0.0f);
  for (int block = from; block < to; block++) {
    const auto* v = chunk.values[block] + column * PACK;
    const uint8_t* later = chunk.while_mixing[block] + column * PACK * chunk.bytes;
    const auto* p = weights + block * BLOCK;
    for (int t = 0; t < BLOCK; t += PACK, v += head_dim * PACK) {
      typename Type::Vector many[D];
      for (int d = 0; d < D; d++) many[d] = Type::many(v + d * LANES * PACK);
      if constexpr (AHEAD)
        for (int d = 0; d < D; d++) prefetch(later + (t * head_dim + d * LANES * PACK) * chunk.bytes);
      for (int r = 0; r < R; r++) {
        const auto x = Type::one(p + r * CHUNK + t);
        for (int d = 0; d < D; d++) sum[r][d] = Type::dot(sum[r][d], x, many[d]);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int d = 0; d < D; d++) {
      float* at = out + r * head_dim + column + d * LANES;
      store(at, old == nullptr ? sum[r][d] : fma(load(at), set1(old[r]), mul(sum[r][d], set1(fresh[r]))));
    }
}

// The running softmax of up to 16 rows, a lane each.
struct alignas(64) State {
  float most[LANES], sum[LANES];
  void clear() { store(most, set1(NOTHING)), store(sum, set1(0.0f)); }
  // Take in a chunk's maxima and sums; what is there counts `old` times, the chunk's `fresh` times.
  void add_chunk(const State& chunk, float* old, float* fresh) {
    const F before = load(most), there = load(chunk.most), now = max(before, there);
    const F a = power2(sub(before, now)), b = power2(sub(there, now));
    store(sum, fma(load(sum), a, mul(load(chunk.sum), b)));
    store(most, now), store(old, a), store(fresh, b);
  }
};

// The keys that each row of a tile sees, relative to the chunk: from[r]..to[r] - 1, out of the blocks first..last - 1.
struct Seen {
  int from[MAX_ROWS], to[MAX_ROWS], first, last;
};

// Room of one thread.
template <typename Type>
struct Room {
  alignas(64) float scores[MAX_ROWS * CHUNK];
  alignas(64) typename Type::Element weights[MAX_ROWS * CHUNK];
};

// The scores of a row are multiplied by the keys' scales (of int8), and those of keys that it does not see become NOTHING.
template <typename Type>
void correct(const Chunk<Type>& chunk, float* scores, int from, int to, int first, int last) {
  for (int b = first; b < last; b++) {
    F s = load(scores + b * BLOCK);
    if (chunk.scaled) s = mul(s, load(chunk.key_scales[b]));
    store(scores + b * BLOCK, keep(s, from - b * BLOCK, to - b * BLOCK, NOTHING));
  }
}

// Scores of R rows become weights, each row's relative to its maximum (in units of log 2), which go into `state` with
// their sums.
template <typename Type, int R>
void softmax(const Chunk<Type>& chunk, const Seen& seen, float scale, Room<Type>& room, State& state) {
  const int first = seen.first, last = seen.last;
  float shift[R];
  for (int r = 0; r < R; r++) {
    float* scores = room.scores + r * CHUNK;
    if (chunk.scaled || seen.from[r] > first * BLOCK || seen.to[r] < last * BLOCK)
      correct(chunk, scores, seen.from[r], seen.to[r], first, last);
    F most = load(scores + first * BLOCK);
    for (int b = first + 1; b < last; b++) most = max(most, load(scores + b * BLOCK));
    shift[r] = reduce_max(most) * scale;
  }
  for (int r = 0; r < R; r++) {
    const float* scores = room.scores + r * CHUNK;
    auto* weights = room.weights + r * CHUNK;
    if (seen.from[r] >= seen.to[r]) {
      for (int b = first; b < last; b++) Type::put(weights + b * BLOCK, set1(0.0f));
      continue;
    }
    F sum = set1(0.0f);
    for (int b = first; b < last; b++) {
      F p = power2(fma(load(scores + b * BLOCK), set1(scale), set1(-shift[r])));
      sum = add(sum, p);
      if (chunk.scaled) p = mul(p, load(chunk.value_scales[b]));
      Type::put(weights + b * BLOCK, p);
    }
    state.most[r] = shift[r], state.sum[r] = reduce_add(sum);
  }
}

// One chunk for R rows: q [R][head_dim]. `alone`: out and state get what the chunk gives, to be joined later; else it
// is joined to what they hold. AHEAD: fetch what the chunk says.
template <typename Type, int R, bool AHEAD>
void attend(const typename Type::Element* q, int head_dim, const Chunk<Type>& chunk, const Seen& seen, float scale,
            bool alone, State& state, float* out, Room<Type>& room) {
  int b = seen.first;
  for (; b + WIDE <= seen.last; b += WIDE) score<Type, R, WIDE, AHEAD>(q, head_dim, chunk, b, room.scores);
  for (; b < seen.last; b++) score<Type, R, 1, AHEAD>(q, head_dim, chunk, b, room.scores);

  State mine;
  mine.clear();
  softmax<Type, R>(chunk, seen, scale, room, mine);
  alignas(64) float old[LANES], fresh[LANES];
  if (alone)
    state = mine;
  else
    state.add_chunk(mine, old, fresh);
  const float* factor = alone ? nullptr : old;
  int d = 0;
  for (; d + WIDE * LANES <= head_dim; d += WIDE * LANES)
    mix<Type, R, WIDE, AHEAD>(room.weights, head_dim, chunk, seen.first, seen.last, d, factor, fresh, out);
  for (; d < head_dim; d += LANES)
    mix<Type, R, 1, AHEAD>(room.weights, head_dim, chunk, seen.first, seen.last, d, factor, fresh, out);
}

template <typename Type>
using Attend = void (*)(const typename Type::Element*, int, const Chunk<Type>&, const Seen&, float, bool, State&, float*,
                        Room<Type>&);

template <typename Type, bool AHEAD>
Attend<Type> attend_rows(int num_rows) {
#if WHET_ISA == 512
  static constexpr Attend<Type> table[] = {attend<Type, 1, AHEAD>, attend<Type, 2, AHEAD>, attend<Type, 3, AHEAD>,
                                           attend<Type, 4, AHEAD>, attend<Type, 5, AHEAD>, attend<Type, 6, AHEAD>};
#else
  static constexpr Attend<Type> table[] = {attend<Type, 1, AHEAD>, attend<Type, 2, AHEAD>};
#endif
  return table[num_rows - 1];
}

}  // namespace whet::attention
