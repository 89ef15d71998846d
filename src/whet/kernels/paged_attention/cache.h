// Keys and values of one layer, in blocks of 16 tokens that the engine hands out, and the batch that they serve.
//
// A block has for each key-value head a tile of keys and a tile of values, H * 16 numbers each. A pack is 1 float, or 2
// numbers of bf16 or int8: what one lane of a product takes.
//
//   keys    [block][kv head][H / pack][16 tokens][pack]   16 keys side by side: a product gives 16 scores, no sums across
//   values  [block][kv head][16 tokens / pack][H][pack]   products add up over tokens, 16 dimensions side by side
//   scales  [block][kv head][16 tokens], float, of int8: x = scale * q
//
// Value slots after a sequence's last token hold zeros to the end of the block, so that a weight of 0 makes 0 of them.
#pragma once

#include "../simd/lanes.h"

namespace whet {

constexpr int BLOCK = 16;  // tokens

enum class Kv : int32_t { f32 = 0, bf16 = 1, s8 = 2 };

struct Heads {
  int32_t num_heads, num_kv_heads, head_dim;  // head_dim: a multiple of 16, up to 256
  int group() const { return num_heads / num_kv_heads; }
  int width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }  // of a row of q, k and v
};

struct Cache {
  Kv kind;
  uint8_t* keys;
  uint8_t* values;
  float* key_scales;  // null but for s8
  float* value_scales;
};

// T tokens of S sequences, as StepBatch in whet/models/step.py.
struct Ragged {
  int32_t num_tokens, num_seqs;
  const int32_t *positions, *query_start, *context_len, *block_tables;
  int32_t max_blocks;
  int num_new(int seq) const { return query_start[seq + 1] - query_start[seq]; }
  int first_position(int seq) const { return context_len[seq] - num_new(seq); }
  const int32_t* blocks(int seq) const { return block_tables + static_cast<size_t>(max_blocks) * seq; }
};

constexpr int pack_of(Kv kind) { return kind == Kv::f32 ? 1 : 2; }
constexpr int bytes_of(Kv kind) { return kind == Kv::f32 ? 4 : kind == Kv::bf16 ? 2 : 1; }

// Keys and values of one layer, without scales.
inline size_t bytes_per_block(Kv kind, Heads heads) {
  return 2ul * BLOCK * bytes_of(kind) * heads.num_kv_heads * heads.head_dim;
}
inline size_t scale_bytes_per_block(Kv kind, Heads heads) {
  return kind == Kv::s8 ? 2ul * BLOCK * sizeof(float) * heads.num_kv_heads : 0;
}

// Where the tile of a block and a head begins: in numbers for keys and values, and of its 16 scales.
inline size_t tile_at(Heads heads, int32_t block, int kv_head) {
  return (static_cast<size_t>(block) * heads.num_kv_heads + kv_head) * heads.head_dim * BLOCK;
}
inline size_t scales_at(Heads heads, int32_t block, int kv_head) {
  return (static_cast<size_t>(block) * heads.num_kv_heads + kv_head) * BLOCK;
}

}  // namespace whet
