// Attention of a flat, ragged batch over a cache in blocks: decode, chunked prefill and prefix hits are the same thing.
//
// A row's keys are taken in chunks of 128 at absolute places. Each chunk has its own maximum and sum (Milakov and
// Gimelshein, 2018, arXiv:1805.02867) and chunks are joined in order, by one thread on the way or, where a long sequence is
// cut among threads (Dao et al., 2023, "Flash-Decoding"), afterwards: the same operations in the same order. So a row's
// result is the same, bit for bit, however its tokens are spread over steps, whatever shares the batch, and on any
// number of threads.
#pragma once

#include <cmath>

#include "../pool.h"
#include "plan.h"

namespace whet {

namespace attention {

// What attention is asked for.
struct Call {
  Heads heads;
  const float* qkv;
  float scale;  // of scores, in units of log 2
  int window;
  const Cache& cache;
  const Ragged& batch;
  float* out;
};

// A query row: its token in the batch, its head, its place in the sequence.
struct Row {
  int token, head, position;
};

// Room of one thread, for tiles of `Type`.
template <typename Type>
struct Desk {
  using Element = typename Type::Element;
  static size_t lines(int head_dim) {
    const size_t tile = TILE_ROWS * (sizeof(State) + sizeof(Row) + (sizeof(float) + sizeof(Element)) * head_dim);
    return (sizeof(Room<Type>) + tile + 2 * sizeof(Element) * CHUNK * head_dim) / sizeof(Line);
  }
  Desk(Line* at, int head_dim) {
    room = reinterpret_cast<Room<Type>*>(at);
    states = reinterpret_cast<State*>(room + 1);
    rows = reinterpret_cast<Row*>(states + TILE_ROWS);
    out = reinterpret_cast<float*>(rows + TILE_ROWS);
    q = reinterpret_cast<Element*>(out + TILE_ROWS * head_dim);
    keys = q + TILE_ROWS * head_dim;
    values = keys + CHUNK * head_dim;
  }
  Room<Type>* room;
  State* states;           // [strip]
  Row* rows;               // [TILE_ROWS]
  float* out;              // [TILE_ROWS][head_dim]
  Element* q;              // [TILE_ROWS][head_dim]
  Element *keys, *values;  // a chunk of int8, unpacked
};

inline void name_rows(const Call& call, const Tile& tile, int row, int num_rows, Row* rows) {
  const int group = call.heads.group(), first_head = tile.kv_head * group;
  int token = (tile.row + row) / group, head = (tile.row + row) % group;
  for (int r = 0; r < num_rows; r++) {
    rows[r] = {call.batch.query_start[tile.seq] + token, first_head + head, call.batch.first_position(tile.seq) + token};
    if (++head == group) head = 0, token++;
  }
}

inline int first_seen(const Call& call, int position) {
  return call.window > 0 ? std::max(0, position - call.window + 1) : 0;
}

template <typename Type>
void gather_queries(const Call& call, const Row* rows, int num_rows, typename Type::Element* q) {
  const int H = call.heads.head_dim;
  for (int r = 0; r < num_rows; r++) {
    const float* from = call.qkv + static_cast<size_t>(call.heads.width()) * rows[r].token + H * rows[r].head;
    for (int d = 0; d < H; d += LANES) Type::put(q + r * H + d, load(from + d));
  }
}

// A block of int8 as bf16, which holds it exactly.
inline void unpack(const uint8_t* bytes, int size, uint16_t* to) {
  for (int i = 0; i < size; i += 32) widen_s8(to + i, reinterpret_cast<const int8_t*>(bytes) + i);
}

// The blocks first..last - 1 of a chunk.
template <typename Type>
void open_chunk(const Call& call, const Tile& tile, int index, int first, int last, const Desk<Type>& desk,
                Chunk<Type>& chunk) {
  using Element = typename Type::Element;
  const Cache& cache = call.cache;
  const int32_t* blocks = call.batch.blocks(tile.seq) + index * BLOCKS;
  const int num_blocks = desk.rows[tile.num_rows - 1].position / BLOCK + 1 - index * BLOCKS;
  const int size = call.heads.head_dim * BLOCK, bytes = bytes_of(cache.kind);
  chunk.bytes = bytes, chunk.scaled = cache.kind == Kv::s8;
  for (int b = first; b < last; b++) {
    const size_t at = tile_at(call.heads, blocks[b], tile.kv_head) * bytes;
    const size_t next =
        b + BLOCKS < num_blocks ? tile_at(call.heads, blocks[b + BLOCKS], tile.kv_head) * bytes : at;
    if (!chunk.scaled) {
      chunk.keys[b] = reinterpret_cast<const Element*>(cache.keys + at);
      chunk.values[b] = reinterpret_cast<const Element*>(cache.values + at);
      chunk.while_scoring[b] = cache.values + at, chunk.while_mixing[b] = cache.keys + next;
      continue;
    }
    const size_t scales = scales_at(call.heads, blocks[b], tile.kv_head);
    chunk.key_scales[b] = cache.key_scales + scales, chunk.value_scales[b] = cache.value_scales + scales;
    chunk.keys[b] = desk.keys + b * size, chunk.values[b] = desk.values + b * size;
    chunk.while_scoring[b] = cache.keys + next, chunk.while_mixing[b] = cache.values + next;
    if constexpr (Type::PACK == 2) {
      unpack(cache.keys + at, size, desk.keys + b * size);
      unpack(cache.values + at, size, desk.values + b * size);
    }
  }
}

// The blocks of a chunk of which some rows see something. False: none.
inline bool overlook(const Call& call, const Row* rows, int num_rows, int chunk, int& first, int& last) {
  const int start = chunk * CHUNK;
  const int from = std::max(first_seen(call, rows[0].position) - start, 0);
  const int to = std::min(rows[num_rows - 1].position + 1 - start, CHUNK);
  first = from / BLOCK, last = (to + BLOCK - 1) / BLOCK;
  return from < CHUNK && to > 0;
}

// The same, and which keys each row sees.
inline bool look(const Call& call, const Row* rows, int num_rows, int chunk, Seen& seen) {
  const int start = chunk * CHUNK;
  if (!overlook(call, rows, num_rows, chunk, seen.first, seen.last)) return false;
  for (int r = 0; r < num_rows; r++) {
    seen.from[r] = std::max(first_seen(call, rows[r].position) - start, 0);
    seen.to[r] = std::min(rows[r].position + 1 - start, CHUNK);
  }
  return true;
}

// out = what the rows have summed up, over the sum of their weights.
inline void finish(const Call& call, const Row* rows, int num_rows, const State& state, const float* sums) {
  const int H = call.heads.head_dim;
  for (int r = 0; r < num_rows; r++, sums += H) {
    const F inverse = set1(1.0f / state.sum[r]);
    float* to = call.out + (static_cast<size_t>(call.heads.num_heads) * rows[r].token + rows[r].head) * H;
    for (int d = 0; d < H; d += LANES) store(to + d, mul(load(sums + d), inverse));
  }
}

// One chunk of a tile.
template <typename Type>
void do_chunk(const Call& call, const Tile& tile, int index, AttentionScratch& scratch, const Desk<Type>& desk) {
  const int H = call.heads.head_dim;
  const bool alone = tile.parts >= 0;
  Chunk<Type> chunk;
  int first, last;
  const bool any = overlook(call, desk.rows, tile.num_rows, index, first, last);
  if (any) open_chunk(call, tile, index, first, last, desk, chunk);
  for (int strip = 0; strip < tile.num_strips(); strip++) {
    const int row = tile.strip_row(strip), num_rows = tile.strip_row(strip + 1) - row;
    State* state = desk.states + strip;
    float* out = desk.out + row * H;
    if (alone) {
      state = reinterpret_cast<State*>(scratch.part(tile, index, strip, H));
      out = reinterpret_cast<float*>(state + 1);
      state->clear();
    }
    Seen seen;
    if (!any || !look(call, desk.rows + row, num_rows, index, seen)) continue;
    // What comes next is fetched once.
    const auto attend = strip == 0 ? attend_rows<Type, true>(num_rows) : attend_rows<Type, false>(num_rows);
    attend(desk.q + row * H, H, chunk, seen, call.scale, alone, *state, out, *desk.room);
  }
}

template <typename Type>
void do_item(const Call& call, const Item& item, AttentionScratch& scratch, int rank) {
  const Tile& tile = scratch.tiles()[item.tile];
  const int H = call.heads.head_dim;
  const bool alone = tile.parts >= 0;
  Desk<Type> desk(scratch.room(rank), H);
  name_rows(call, tile, 0, tile.num_rows, desk.rows);
  gather_queries<Type>(call, desk.rows, tile.num_rows, desk.q);
  if (!alone) {
    for (int strip = 0; strip < tile.num_strips(); strip++) desk.states[strip].clear();
    for (int i = 0; i < tile.num_rows * H; i += LANES) store(desk.out + i, set1(0.0f));
  }
  for (int chunk = item.first_chunk; chunk < item.last_chunk; chunk++) do_chunk(call, tile, chunk, scratch, desk);
  if (alone) return;
  for (int strip = 0; strip < tile.num_strips(); strip++) {
    const int row = tile.strip_row(strip);
    finish(call, desk.rows + row, tile.strip_row(strip + 1) - row, desk.states[strip], desk.out + row * H);
  }
}

// Join the chunks of a strip as one thread would have done on the way.
inline void do_join(const Call& call, const Join& join, AttentionScratch& scratch) {
  const Tile& tile = scratch.tiles()[join.tile];
  const int H = call.heads.head_dim, row = tile.strip_row(join.strip), num_rows = tile.strip_row(join.strip + 1) - row;
  alignas(64) float sums[MAX_ROWS * 256], old[LANES], fresh[LANES];
  for (int i = 0; i < num_rows * H; i += LANES) store(sums + i, set1(0.0f));
  State state;
  state.clear();
  for (int chunk = 0; chunk < tile.num_chunks; chunk++) {
    const auto* part = reinterpret_cast<const State*>(scratch.part(tile, chunk, join.strip, H));
    if (part->most[0] == NOTHING && reduce_max(load(part->most)) == NOTHING) continue;  // out of the window
    const auto* fresh_sums = reinterpret_cast<const float*>(part + 1);
    state.add_chunk(*part, old, fresh);
    for (int r = 0; r < num_rows; r++)
      for (int i = r * H; i < (r + 1) * H; i += LANES)
        store(sums + i, fma(load(sums + i), set1(old[r]), mul(load(fresh_sums + i), set1(fresh[r]))));
  }
  Row rows[MAX_ROWS];
  name_rows(call, tile, row, num_rows, rows);
  finish(call, rows, num_rows, state, sums);
}

}  // namespace attention

inline size_t AttentionScratch::lines_of_room(Kv kind, int head_dim) {
  return kind == Kv::f32 ? attention::Desk<attention::Floats>::lines(head_dim)
                         : attention::Desk<attention::Bf16s>::lines(head_dim);
}

// out [T][num_heads * head_dim] from q in qkv [T][(num_heads + 2 * num_kv_heads) * head_dim] and the cache, which holds
// the step's own keys and values already. window: 0, or a token sees itself and the window - 1 before it. `scratch` was
// planned for this batch and these heads. Ends with a barrier.
inline void paged_attention(Team& team, Heads heads, const float* qkv, float softmax_scale, int window,
                            const Cache& cache, const Ragged& batch, float* out, AttentionScratch& scratch) {
  using namespace attention;
  const Call call{heads, qkv, softmax_scale * 1.44269504088896341f, window, cache, batch, out};
  team.each(static_cast<int>(scratch.items().size()), [&](int i) {
    const Item& item = scratch.items()[i];
    if (cache.kind == Kv::f32)
      do_item<Floats>(call, item, scratch, team.rank());
    else
      do_item<Bf16s>(call, item, scratch, team.rank());
  });
  if (scratch.joins().empty()) return;
  team.each(static_cast<int>(scratch.joins().size()), [&](int i) { do_join(call, scratch.joins()[i], scratch); });
}

}  // namespace whet
