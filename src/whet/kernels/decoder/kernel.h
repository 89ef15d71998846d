// One step of a Llama-family decoder, from token ids to logits, in one region of the pool: nothing of Python between
// layers, and between phases a barrier of a fraction of a microsecond.
//
// The residual stream, norms, softmax and everything between matrices are float32 whatever the weights are.
#pragma once

#include "../gated_mlp/kernel.h"
#include "../linear/store.h"
#include "../paged_attention/kernel.h"
#include "../qkv_rope/kernel.h"
#include "../rms_norm/kernel.h"

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
  Rope rope;
  const Layer* layers;
  const float* final_norm;
  const uint8_t* embedding;  // [vocab][hidden]
  int32_t embedding_is_bf16;
  Weights head;
};

// Room for T tokens and R logits.
struct Workspace {
  std::vector<float> x, qkv, attention, gated, scales;
  std::vector<int32_t> sums;
  std::vector<uint8_t> rows;
  AttentionScratch scratch;

  void fit(const Decoder& d, int num_tokens) {
    const size_t tokens = num_tokens, width = d.heads.head_dim;
    const size_t widest = std::max({size_t(d.hidden), d.heads.num_heads * width, gated_stride(d)}) + 64;
    grow(x, tokens * d.hidden);
    grow(qkv, tokens * (d.heads.num_heads + 2 * d.heads.num_kv_heads) * width);
    grow(attention, tokens * d.heads.num_heads * width);
    grow(gated, tokens * gated_stride(d));
    grow(scales, tokens);
    grow(sums, tokens);
    grow(rows, tokens * row_bytes(Kind::f32, widest) + 64);
  }
  static size_t gated_stride(const Decoder& d) { return (d.intermediate + LANES - 1) / LANES * LANES; }
  Rows rows_for(const Weights& weights) const {
    const auto at = reinterpret_cast<uintptr_t>(rows.data());
    return {reinterpret_cast<const uint8_t*>((at + 63) / 64 * 64), row_bytes(weights.kind, weights.k), scales.data(),
            sums.data()};
  }

 private:
  template <typename T>
  static void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  }
};

inline void embed(const Decoder& d, int32_t token, float* x) {
  if (!d.embedding_is_bf16) {
    std::memcpy(x, d.embedding + 4ul * d.hidden * token, 4ul * d.hidden);
    return;
  }
  const uint16_t* row = reinterpret_cast<const uint16_t*>(d.embedding) + size_t(d.hidden) * token;
  int i = 0;
  for (; i + LANES <= d.hidden; i += LANES) store(x + i, load_bf16(row + i));
  for (; i < d.hidden; i++) x[i] = bf16_to_float(row[i]);
}

// Make rows ready for a matrix: prepared row i is row `source(i)` of x, normalised where there is a norm. A row is
// normalised in the buffer of the thread that does it.
template <typename Source>
void prepare(Team& team, const Weights& weights, const float* x, int stride, int size, const float* norm, float eps,
             int num_rows, const Rows& rows, Source source) {
  team.each(num_rows, [&](int i) {
    const float* row = x + static_cast<size_t>(stride) * source(i);
    if (norm == nullptr) return prepare_row(weights.kind, row, size, weights.k, rows, i);
    static thread_local std::vector<float> normalised;
    normalised.resize(size);
    rms_norm_row(row, norm, size, eps, normalised.data());
    prepare_row(weights.kind, normalised.data(), size, weights.k, rows, i);
  });
}

inline void attend(Team& team, const Decoder& d, const Layer& layer, const Ragged& batch, Workspace& ws) {
  const auto same = [](int row) { return row; };
  const int T = batch.num_tokens, H = d.heads.head_dim;
  const int qkv_width = (d.heads.num_heads + 2 * d.heads.num_kv_heads) * H, mixed_width = d.heads.num_heads * H;
  Rows rows = ws.rows_for(layer.qkv);
  prepare(team, layer.qkv, ws.x.data(), d.hidden, d.hidden, layer.attention_norm, d.eps, T, rows, same);
  linear(team, layer.qkv, rows, T, [&](const Finished& tile) { store_tile<false>(tile, ws.qkv.data(), qkv_width); });
  write_qkv(team, d.heads, ws.qkv.data(), d.rope, layer.q_norm, layer.k_norm, d.eps, layer.cache, batch);
  paged_attention(team, d.heads, ws.qkv.data(), d.softmax_scale, layer.window, layer.cache, batch,
                  ws.attention.data(), ws.scratch);
  rows = ws.rows_for(layer.o);
  prepare(team, layer.o, ws.attention.data(), mixed_width, mixed_width, nullptr, 0.0f, T, rows, same);
  linear(team, layer.o, rows, T, [&](const Finished& tile) { store_tile<true>(tile, ws.x.data(), d.hidden); });
}

inline void mlp(Team& team, const Decoder& d, const Layer& layer, int num_tokens, Workspace& ws) {
  const auto same = [](int row) { return row; };
  const int stride = static_cast<int>(Workspace::gated_stride(d));
  Rows rows = ws.rows_for(layer.gate_up);
  prepare(team, layer.gate_up, ws.x.data(), d.hidden, d.hidden, layer.mlp_norm, d.eps, num_tokens, rows, same);
  linear(team, layer.gate_up, rows, num_tokens,
         [&](const Finished& tile) { store_gated(tile, ws.gated.data(), stride); });
  rows = ws.rows_for(layer.down);
  prepare(team, layer.down, ws.gated.data(), stride, d.intermediate, nullptr, 0.0f, num_tokens, rows, same);
  linear(team, layer.down, rows, num_tokens,
         [&](const Finished& tile) { store_tile<true>(tile, ws.x.data(), d.hidden); });
}

// logits [R][vocab] of the tokens `logit_rows`.
inline void decode_step(Team& team, const Decoder& d, const Ragged& batch, const int32_t* token_ids,
                        const int32_t* logit_rows, int num_logits, Workspace& ws, float* logits) {
  team.each(batch.num_tokens, [&](int t) { embed(d, token_ids[t], ws.x.data() + size_t(d.hidden) * t); });
  for (int i = 0; i < d.num_layers; i++) {
    attend(team, d, d.layers[i], batch, ws);
    mlp(team, d, d.layers[i], batch.num_tokens, ws);
  }
  const Rows rows = ws.rows_for(d.head);
  prepare(team, d.head, ws.x.data(), d.hidden, d.hidden, d.final_norm, d.eps, num_logits, rows,
          [&](int i) { return logit_rows[i]; });
  linear(team, d.head, rows, num_logits, [&](const Finished& tile) { store_tile<false>(tile, logits, d.vocab); });
}

}  // namespace whet
