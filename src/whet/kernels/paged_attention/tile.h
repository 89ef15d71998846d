// A tile of attention: some query rows that share a key-value head, against one chunk of keys at an absolute place.
//
// What a row computes does not depend on the rows beside it: each sum has its own register and runs over head_dim or
// over keys in order, a chunk's maximum is the row's own, and keys that a row does not see weigh exactly 0.
#pragma once

#include "cache.h"
#include "number.h"

namespace whet::attention {

constexpr int CHUNK = 128;  // keys
constexpr int BLOCKS = CHUNK / BLOCK;
constexpr int MAX_ROWS = WHET_ISA == 512 ? 6 : 2;  // of a tile
constexpr float NOTHING = -1.0e30f;                // the score of a key that is not seen, the maximum of none

// Blocks, or 16 dimensions, at once: with the rows as many sums as there are registers for.
template <typename Type, int R>
constexpr int wide() {
  return WHET_ISA == 512 && R * Type::PLANES <= 6 ? 4 : WHET_ISA == 512 || Type::PLANES == 1 ? 2 : 1;
}

// The blocks of a chunk as they lie in the cache, and of the keys that will be read after it.
template <typename Type>
struct Chunk {
  using Element = typename Type::Element;
  const Element *keys[BLOCKS], *values[BLOCKS], *next_keys[BLOCKS];
  const float *key_scales[BLOCKS], *value_scales[BLOCKS];  // of bytes
};

// Rows of queries or of weights, ready for products; row r has number + r * PLANES * length.
template <typename Type>
struct ReadyRows {
  typename Type::Number* number;
  float* step;              // [R]
  int32_t (*starts)[2];     // [R]
  int length;               // head_dim or CHUNK
  Ready<typename Type::Number> row(int r) const {
    return {number + r * Type::PLANES * length, step + r, starts[r], length};
  }
  ReadyRows from(int r) const { return {number + r * Type::PLANES * length, step + r, starts + r, length}; }
};

// The keys that each row of a tile sees, relative to the chunk: from[r]..to[r] - 1, out of the blocks first..last - 1.
struct Seen {
  int from[MAX_ROWS], to[MAX_ROWS], first, last;
};

// What one thread needs for a tile.
template <typename Type>
struct Room {
  alignas(64) float scores[MAX_ROWS * CHUNK];
  alignas(64) typename Type::Number weights[MAX_ROWS * Type::PLANES * CHUNK];
  alignas(64) float step[LANES];
  alignas(64) int32_t starts[LANES][2];
  ReadyRows<Type> rows() { return {weights, step, starts, CHUNK}; }
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

// scores [R][CHUNK], of the keys of C blocks. AHEAD: fetch as many blocks of `later`.
template <typename Type, int R, int C, bool AHEAD>
void score(const ReadyRows<Type>& q, const typename Type::Element* const* keys, const typename Type::Element* const* later,
           float* scores) {
  typename Type::Sum sum[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sum[r][c] = Type::start(q.starts[r]);
  const int length = q.length;
  for (int d = 0; d < length; d += Type::PACK) {
    typename Type::Many k[C];
    for (int c = 0; c < C; c++) k[c] = Type::many(keys[c] + d * BLOCK);
    if constexpr (AHEAD)
      for (int c = 0; c < C; c++) prefetch(later[c] + d * BLOCK);
    for (int r = 0; r < R; r++) {
      const auto x = Type::one(q.number + r * Type::PLANES * length + d, length);
      for (int c = 0; c < C; c++) sum[r][c] = Type::dot(sum[r][c], x, k[c]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(scores + r * CHUNK + c * BLOCK, Type::value(sum[r][c], q.step + r));
}

// out [R][head_dim] = old * out + fresh * (weights times values), of 16 * D dimensions and the blocks from..to - 1;
// without `old` the product alone.
template <typename Type, int R, int D, bool AHEAD>
void mix(const ReadyRows<Type>& weights, int head_dim, const typename Type::Element* const* values,
         const typename Type::Element* const* later, int from, int to, const float* old, const float* fresh, float* out) {
  constexpr int PACK = Type::PACK;
  typename Type::Sum sum[R][D];
  for (int r = 0; r < R; r++)
    for (int d = 0; d < D; d++) sum[r][d] = Type::start(weights.starts[r]);
  for (int block = from; block < to; block++) {
    const auto* v = values[block];
    const auto* next = later[block];
    const auto* p = weights.number + block * BLOCK;
    for (int t = 0; t < BLOCK; t += PACK, v += head_dim * PACK, next += head_dim * PACK) {
      typename Type::Many many[D];
      for (int d = 0; d < D; d++) many[d] = Type::many(v + d * LANES * PACK);
      if constexpr (AHEAD)
        for (int d = 0; d < D; d++) prefetch(next + d * LANES * PACK);
      for (int r = 0; r < R; r++) {
        const auto x = Type::one(p + r * Type::PLANES * CHUNK + t, CHUNK);
        for (int d = 0; d < D; d++) sum[r][d] = Type::dot(sum[r][d], x, many[d]);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int d = 0; d < D; d++) {
      float* at = out + r * head_dim + d * LANES;
      const F value = Type::value(sum[r][d], weights.step + r);
      store(at, old == nullptr ? value : fma(load(at), set1(old[r]), mul(value, set1(fresh[r]))));
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

// The largest score of a row, after those of bytes got their keys' scales, and those of keys that it does not see
// became NOTHING.
template <typename Type>
float largest_score(const Chunk<Type>& chunk, float* scores, int from, int to, int first, int last) {
  F most = set1(NOTHING);
  const bool all = from <= first * BLOCK && to >= last * BLOCK;
  for (int b = first; b < last; b++) {
    F s = load(scores + b * BLOCK);
    if constexpr (Type::PLANES == 2) s = mul(s, load(chunk.key_scales[b]));
    if (!all) s = keep(s, from - b * BLOCK, to - b * BLOCK, NOTHING);
    if (!all || Type::PLANES == 2) store(scores + b * BLOCK, s);
    most = max(most, s);
  }
  return reduce_max(most);
}

// Scores of R rows become weights, each row's relative to its maximum (in units of log 2), which goes into `state` with
// their sum.
template <typename Type, int R>
void softmax(const Chunk<Type>& chunk, const Seen& seen, float scale, Room<Type>& room, State& state) {
  const int first = seen.first, last = seen.last;
  float shift[R];
  for (int r = 0; r < R; r++)
    shift[r] = largest_score(chunk, room.scores + r * CHUNK, seen.from[r], seen.to[r], first, last) * scale;
  for (int r = 0; r < R; r++) {
    float* scores = room.scores + r * CHUNK;
    const auto row = room.rows().row(r);
    const bool any = seen.from[r] < seen.to[r];
    F sum = set1(0.0f);
    for (int b = first; b < last; b++) {
      F p = set1(0.0f);
      if (any) p = power2(fma(load(scores + b * BLOCK), set1(scale), set1(-shift[r])));
      sum = add(sum, p);
      if constexpr (Type::PLANES == 2)
        store(scores + b * BLOCK, mul(p, load(chunk.value_scales[b])));
      else
        Type::put(row.number + b * BLOCK, p);
    }
    if constexpr (Type::PLANES == 2) make_ready<Type>(scores, first * BLOCK, last * BLOCK, row);
    if (any) state.most[r] = shift[r], state.sum[r] = reduce_add(sum);
  }
}

// One chunk for R rows. `alone`: out [R][head_dim] and state get what the chunk gives, to be joined later; else it is
// joined to what they hold. AHEAD: fetch the chunk's values and the next one's keys.
template <typename Type, int R, bool AHEAD>
void attend(const ReadyRows<Type>& q, const Chunk<Type>& chunk, const Seen& seen, float scale, bool alone, State& state,
            float* out, Room<Type>& room) {
  constexpr int WIDE = wide<Type, R>();
  int b = seen.first;
  for (; b + WIDE <= seen.last; b += WIDE)
    score<Type, R, WIDE, AHEAD>(q, chunk.keys + b, chunk.values + b, room.scores + b * BLOCK);
  if constexpr (WIDE > 1)
    for (; b < seen.last; b++)
      score<Type, R, 1, AHEAD>(q, chunk.keys + b, chunk.values + b, room.scores + b * BLOCK);

  State mine;
  mine.clear();
  softmax<Type, R>(chunk, seen, scale, room, mine);
  alignas(64) float old[LANES], fresh[LANES];
  if (alone)
    state = mine;
  else
    state.add_chunk(mine, old, fresh);
  const float* factor = alone ? nullptr : old;
  const int head_dim = q.length;
  const ReadyRows<Type> weights = room.rows();
  int d = 0;
  const auto columns = [&](auto mix_columns, int width) {
    for (; d + width <= head_dim; d += width) {
      const typename Type::Element *values[BLOCKS], *later[BLOCKS];
      for (int i = seen.first; i < seen.last; i++)
        values[i] = chunk.values[i] + d * Type::PACK, later[i] = chunk.next_keys[i] + d * Type::PACK;
      mix_columns(weights, head_dim, values, later, seen.first, seen.last, factor, fresh, out + d);
    }
  };
  columns(mix<Type, R, WIDE, AHEAD>, WIDE * LANES);
  if constexpr (WIDE > 1) columns(mix<Type, R, 1, AHEAD>, LANES);
}

template <typename Type>
using Attend = void (*)(const ReadyRows<Type>&, const Chunk<Type>&, const Seen&, float, bool, State&, float*, Room<Type>&);

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
