// Attention and MLP of a Llama-family decoder, in one region of the pool: nothing of Python between layers, and between
// phases a barrier of a fraction of a microsecond. hybrid_model/ and memory_model/ make steps of them.
//
// The residual stream, norms, softmax and everything between matrices are float32 whatever the weights are.
#pragma once

#include <algorithm>

#include "../gated_mlp/kernel.h"
#include "../linear/store.h"
#include "../paged_attention/kernel.h"
#include "../process_group/kernel.h"
#include "../qkv_rope/kernel.h"
#include "rows.h"

namespace whet {

struct Layer {
  Weights qkv, o, gate_up, down;
  const float *attention_norm, *mlp_norm;
  const float *q_norm, *k_norm;  // null where the family has none
  Cache cache;
  int32_t window;  // 0: none
};

struct Decoder {
  Heads heads;
  int32_t hidden, intermediate, vocab, num_layers;
  float eps, softmax_scale;
  float attention_factor, gate_factor, mlp_factor;  // of what attention adds, of the MLP's gate, of what the MLP adds
  Rope rope;
  const Layer* layers;
  const float* final_norm;
  const uint8_t* embedding;  // [vocab][hidden]; null in all processes of a group but the first
  int32_t embedding_is_bf16;
  Weights head;
  Group* group;  // of processes that have a share of all this each; null where one process has it whole
};

// Tokens that go through a layer together. What lies between its matrices then stays in the caches; the layer's weights
// come from the last of them for all parts but the first.
constexpr int PART_TOKENS = 192;

// Some of a step's tokens as a step of their own: attention is the same, bit for bit, however tokens are spread.
struct Part {
  int first;
  std::vector<int32_t> query_start, context_len;
  Ragged batch;
  AttentionScratch scratch;

  // The tokens first..last - 1 of the step. Raises std::bad_alloc.
  void cut(const Ragged& step, int from, int to) {
    const int32_t* starts = step.query_start;
    int seq = static_cast<int>(std::upper_bound(starts, starts + step.num_seqs + 1, from) - starts) - 1;
    first = from;
    query_start.assign(1, 0), context_len.clear();
    batch = step;
    batch.num_tokens = to - from, batch.positions += first, batch.block_tables = step.blocks(seq);
    for (; seq < step.num_seqs && starts[seq] < to; seq++) {
      const int end = std::min(starts[seq + 1], to);
      query_start.push_back(end - first);
      context_len.push_back(step.first_position(seq) + end - starts[seq]);
    }
    batch.num_seqs = static_cast<int>(context_len.size());
    batch.query_start = query_start.data(), batch.context_len = context_len.data();
  }
};

// Room for a step.
struct Workspace {
  std::vector<float> x, qkv, attention, gated, scales;
  std::vector<int32_t> sums;
  std::vector<uint8_t> rows;
  std::vector<Part> parts;  // the first num_parts
  int num_parts = 0;

  // Raises std::bad_alloc.
  void fit(const Decoder& d, const Ragged& batch, int num_logits, int num_threads) {
    const int T = batch.num_tokens, size = part_size(T);
    num_parts = (T + size - 1) / size;
    if (parts.size() < static_cast<size_t>(num_parts)) parts.resize(num_parts);
    for (int i = 0; i < num_parts; i++) {
      parts[i].cut(batch, size * i, std::min(size * (i + 1), T));
      parts[i].scratch.plan(d.heads, d.layers[0].cache.kind, parts[i].batch, num_threads);
    }
    fit_rows(d, T, size, num_logits, 0);
  }
  // Room for the rows of a step of so many tokens, of which `size` are in a part, and which are `widest` somewhere else.
  void fit_rows(const Decoder& d, int num_tokens, int size, int num_logits, size_t widest) {
    const size_t width = d.heads.head_dim, tokens = size, rows_at_once = std::max(size, num_logits);
    widest = std::max({widest, size_t(d.hidden), d.heads.num_heads * width, gated_stride(d)}) + 64;
    grow(x, size_t(num_tokens) * d.hidden);
    grow(qkv, tokens * d.heads.width());
    grow(attention, tokens * d.heads.num_heads * width);
    grow(gated, tokens * gated_stride(d));
    grow(scales, rows_at_once);
    grow(sums, rows_at_once);
    grow(rows, rows_at_once * row_bytes(Kind::f32, widest) + 64);
  }
  static size_t gated_stride(const Decoder& d) { return (d.intermediate + LANES - 1) / LANES * LANES; }
  Rows rows_for(const Weights& weights) const {
    const auto at = reinterpret_cast<uintptr_t>(rows.data());
    return {reinterpret_cast<const uint8_t*>((at + 63) / 64 * 64), row_bytes(weights.kind, weights.k), scales.data(),
            sums.data()};
  }

 private:
  // Even, and whole tiles of matrices and of attention (but for a last one).
  static int part_size(int num_tokens) {
    constexpr int TILES = 12;
    const int num_parts = std::max(1, (num_tokens + PART_TOKENS - 1) / PART_TOKENS);
    return (num_tokens + num_parts * TILES - 1) / (num_parts * TILES) * TILES;
  }
  template <typename T>
  static void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  }
};

// x [T][hidden] gets the rows times a matrix, of which each process of a group has some inputs.
inline void add_product(Team& team, const Decoder& d, const Weights& weights, const Rows& rows, int num_rows,
                        float factor, float* x) {
  if (d.group == nullptr) return linear(team, weights, rows, num_rows, Store<true>{x, d.hidden, factor});
  linear(team, weights, rows, num_rows, Store<false>{d.group->slot(team), d.hidden, factor});
  d.group->add(team, num_rows, x);
}

// x [T][hidden] of a part gets what attention makes of `from`, which may be x.
inline void attend(Team& team, const Decoder& d, const Layer& layer, Part& part, const float* from, float* x,
                   Workspace& ws) {
  const auto same = [](int row) { return row; };
  const int T = part.batch.num_tokens, qkv_width = d.heads.width(), mixed_width = d.heads.num_heads * d.heads.head_dim;
  Rows rows = ws.rows_for(layer.qkv);
  prepare(team, layer.qkv, from, d.hidden, d.hidden, layer.attention_norm, d.eps, T, rows, same);
  linear(team, layer.qkv, rows, T, Store<false>{ws.qkv.data(), qkv_width});
  write_qkv(team, d.heads, ws.qkv.data(), d.rope, layer.q_norm, layer.k_norm, d.eps, layer.cache, part.batch);
  paged_attention(team, d.heads, ws.qkv.data(), d.softmax_scale, layer.window, layer.cache, part.batch,
                  ws.attention.data(), part.scratch);
  rows = ws.rows_for(layer.o);
  prepare(team, layer.o, ws.attention.data(), mixed_width, mixed_width, nullptr, 0.0f, T, rows, same);
  add_product(team, d, layer.o, rows, T, d.attention_factor, x);
}

inline void mlp(Team& team, const Decoder& d, const Layer& layer, int num_tokens, float* x, Workspace& ws) {
  const auto same = [](int row) { return row; };
  const int stride = static_cast<int>(Workspace::gated_stride(d));
  Rows rows = ws.rows_for(layer.gate_up);
  prepare(team, layer.gate_up, x, d.hidden, d.hidden, layer.mlp_norm, d.eps, num_tokens, rows, same);
  linear(team, layer.gate_up, rows, num_tokens, Gate{ws.gated.data(), stride, d.gate_factor});
  rows = ws.rows_for(layer.down);
  prepare(team, layer.down, ws.gated.data(), stride, d.intermediate, nullptr, 0.0f, num_tokens, rows, same);
  add_product(team, d, layer.down, rows, num_tokens, d.mlp_factor, x);
}

}  // namespace whet
