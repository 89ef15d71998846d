// One step of a hybrid model, from token ids to logits, in one region of the pool. Each layer has one or several mixers
// (attention over paged blocks, Mamba-2, a gated short convolution), which read the same input and are added, and an MLP.
//
// Attention and MLP are those of decoder/, Mamba-2 is that of selective_model/. A sequence's logits are the same, bit for
// bit, whatever other sequences are in the step and however its tokens are divided into steps.
#pragma once

#include "../decoder/kernel.h"
#include "../selective_model/kernel.h"

namespace whet {
namespace hybrid_model {

using selective_model::Segment;
using selective_model::Tokens;

constexpr int32_t ATTENTION = 1, MAMBA = 2, CONV = 4, MLP = 8;

inline bool has_several(int32_t mixers) {
  mixers &= ~MLP;
  return (mixers & (mixers - 1)) != 0;
}

// y = out_proj(C * conv(B * u)), where in_proj gives B, C and u side by side.
struct ConvLayer {
  Weights in_proj, out_proj;
  const float* norm;
  const float *conv_weight, *conv_bias;  // [taps][hidden]; [hidden] or null
  float* conv_state;                     // [rows][taps - 1 + drafts][hidden]
};

struct Model {
  Decoder decoder;               // with attention and MLP of all layers
  selective_model::Model mamba;  // its layers count as the decoder's
  const int32_t* mixers;         // of each layer, and whether it has an MLP
  const ConvLayer* convs;        // of each layer
  int32_t has_mamba, conv_taps, num_drafts;
  int32_t squares;               // MLPs square a ReLU, and have no gate
  float embedding_factor, logits_factor;
};

// Room for a step.
struct Workspace {
  whet::Workspace decoder;
  selective_model::Workspace mamba;
  std::vector<float> before;            // the input of mixers that are added, [part][hidden]
  std::vector<float> projected, gated;  // of short convolutions, [part][3 hidden] and [part][hidden]
  std::vector<std::vector<Segment>> cuts;
  std::vector<Tokens> parts;  // as the decoder's

  // Raises std::bad_alloc.
  void fit(const Model& m, const Ragged& batch, const Tokens& tokens, int num_logits, int num_threads) {
    decoder.fit(m.decoder, batch, num_logits, num_threads);
    if (cuts.size() < static_cast<size_t>(decoder.num_parts)) cuts.resize(decoder.num_parts);
    parts.clear();
    int most = 0;
    for (int i = 0; i < decoder.num_parts; i++) {
      const Part& part = decoder.parts[i];
      parts.push_back(selective_model::part_of(tokens, part.first, part.first + part.batch.num_tokens, cuts[i]));
      most = std::max(most, part.batch.num_tokens);
    }
    const size_t hidden = m.decoder.hidden;
    bool has_conv = false, adds = false;  // a decoder does neither
    for (int i = 0; i < m.decoder.num_layers; i++) {
      has_conv |= (m.mixers[i] & CONV) != 0;
      adds |= has_several(m.mixers[i]);
    }
    if (adds) before.resize(std::max(before.size(), most * hidden));
    if (has_conv) projected.resize(std::max(projected.size(), 3 * most * hidden));
    if (has_conv) gated.resize(std::max(gated.size(), most * hidden));
    if (!m.has_mamba) return;
    mamba.fit(m.mamba, most, 1);
    for (const Tokens& part : parts) mamba.fit_replayed(m.mamba, part.num_replayed);
  }
};

// The convolution of some channels between its gates, and their state afterwards.
inline void convolve(const Model& m, const ConvLayer& layer, const Segment& s, int begin, int end, Workspace& ws) {
  const int kept = m.conv_taps - 1;
  const size_t D = m.decoder.hidden;
  float* state = layer.conv_state + (kept + m.num_drafts) * D * s.state_row;
  float* rows = ws.projected.data() + 3 * D * s.first;  // B, C, u of each token; B becomes B * u
  const selective_scan::View x{rows, 0, static_cast<int64_t>(3 * D), 0};
  const float* before = s.begins ? nullptr : state + s.replayed * D;
  const causal_conv::Problem p{1, s.count, m.decoder.hidden, m.conv_taps, 0, x, layer.conv_weight, layer.conv_bias,
                               before};
  for (int c = begin; c < end; c += LANES) {
    const int width = std::min(LANES, end - c);
    for (int t = 0; t < s.count; t++) {
      float* b = rows + 3 * D * t + c;
      store_part(b, mul(load_part(b, width, 0.0f), load_part(b + 2 * D, width, 0.0f)), width);
    }
    for (int t = 0; t < s.count; t++) {
      const F chosen = mul(load_part(rows + 3 * D * t + D + c, width, 0.0f), p.sum(0, t, c, width));
      store_part(ws.gated.data() + (s.first + t) * D + c, chosen, width);
    }
    selective_model::keep_inputs(state, D, kept, s, x, c, width);
  }
}

// x [T][hidden] of a part gets what the short convolution makes of `from`, which may be x.
inline void mix(Team& team, const Model& m, const ConvLayer& layer, const Tokens& part, const float* from, float* x,
                Workspace& ws) {
  using selective_model::CHANNELS_AT_ONCE;
  const auto same = [](int row) { return row; };
  const int T = part.num_tokens, D = m.decoder.hidden;
  Rows rows = ws.decoder.rows_for(layer.in_proj);
  prepare(team, layer.in_proj, from, D, D, layer.norm, m.decoder.eps, T, rows, same);
  linear(team, layer.in_proj, rows, T, Store<false>{ws.projected.data(), 3 * D});
  const int groups = (D + CHANNELS_AT_ONCE - 1) / CHANNELS_AT_ONCE;
  team.each(groups * part.num_segments, [&](int item) {
    const int begin = item % groups * CHANNELS_AT_ONCE;
    convolve(m, layer, part.segments[item / groups], begin, std::min(begin + CHANNELS_AT_ONCE, D), ws);
  });
  rows = ws.decoder.rows_for(layer.out_proj);
  prepare(team, layer.out_proj, ws.gated.data(), D, D, nullptr, 0.0f, T, rows, same);
  linear(team, layer.out_proj, rows, T, Store<true>{x, D});
}

// x [T][hidden] of a part gets down(relu(up(norm(x)))^2).
inline void squared_mlp(Team& team, const Decoder& d, const Layer& layer, int num_tokens, float* x,
                        whet::Workspace& ws) {
  const auto same = [](int row) { return row; };
  const int stride = static_cast<int>(whet::Workspace::gated_stride(d));
  Rows rows = ws.rows_for(layer.gate_up);
  prepare(team, layer.gate_up, x, d.hidden, d.hidden, layer.mlp_norm, d.eps, num_tokens, rows, same);
  linear(team, layer.gate_up, rows, num_tokens, Store<false>{ws.gated.data(), stride});
  team.each(num_tokens, [&](int t) {
    float* row = ws.gated.data() + static_cast<size_t>(stride) * t;
    for (int c = 0; c < stride; c += LANES) {
      const F positive = max(load(row + c), set1(0.0f));
      store(row + c, mul(positive, positive));
    }
  });
  rows = ws.rows_for(layer.down);
  prepare(team, layer.down, ws.gated.data(), stride, d.intermediate, nullptr, 0.0f, num_tokens, rows, same);
  linear(team, layer.down, rows, num_tokens, Store<true>{x, d.hidden, d.mlp_factor});
}

// One layer of one part, in place.
inline void advance(Team& team, const Model& m, int layer, int part, float* x, Workspace& ws) {
  const int32_t mixers = m.mixers[layer];
  const int T = ws.parts[part].num_tokens, D = m.decoder.hidden;
  const float* from = x;
  if (has_several(mixers)) {
    team.each(T, [&](int t) {
      const size_t at = static_cast<size_t>(D) * t;
      std::memcpy(ws.before.data() + at, x + at, sizeof(float) * D);
    });
    from = ws.before.data();
  }
  if (mixers & ATTENTION) attend(team, m.decoder, m.decoder.layers[layer], ws.decoder.parts[part], from, x, ws.decoder);
  if (mixers & MAMBA)
    selective_model::mix(team, m.mamba, m.mamba.layers[layer], nullptr, ws.parts[part], from, x, ws.mamba);
  if (mixers & CONV) mix(team, m, m.convs[layer], ws.parts[part], from, x, ws);
  if (!(mixers & MLP)) return;
  const Layer& mlp_layer = m.decoder.layers[layer];
  if (m.squares)
    squared_mlp(team, m.decoder, mlp_layer, T, x, ws.decoder);
  else
    mlp(team, m.decoder, mlp_layer, T, x, ws.decoder);
}

// logits [R][vocab] of the tokens `logit_rows`; in a group of processes, this one's columns of them.
inline void step(Team& team, const Model& m, int num_tokens, const int32_t* token_ids, const int32_t* logit_rows,
                 int num_logits, Workspace& ws, float* logits) {
  const Decoder& d = m.decoder;
  float* x = ws.decoder.x.data();
  const bool embeds = d.group == nullptr || d.group->sizes().rank == 0;
  team.each(embeds ? num_tokens : 0, [&](int t) {
    float* row = x + static_cast<size_t>(d.hidden) * t;
    embed(d.embedding, d.embedding_is_bf16, d.hidden, token_ids[t], row);
    for (int c = 0; c < d.hidden; c++) row[c] *= m.embedding_factor;
  });
  const auto part_of_x = [&](int part) { return x + static_cast<size_t>(d.hidden) * ws.decoder.parts[part].first; };
  for (int j = 0; d.group != nullptr && j < ws.decoder.num_parts; j++)
    d.group->copy_from_first(team, ws.parts[j].num_tokens, part_of_x(j));
  for (int i = 0; i < d.num_layers; i++)
    for (int j = 0; j < ws.decoder.num_parts; j++) advance(team, m, i, j, part_of_x(j), ws);
  const Rows rows = ws.decoder.rows_for(d.head);
  prepare(team, d.head, x, d.hidden, d.hidden, d.final_norm, d.eps, num_logits, rows,
          [&](int i) { return logit_rows[i]; });
  if (d.group == nullptr)
    return linear(team, d.head, rows, num_logits, Store<false>{logits, d.vocab, m.logits_factor});
  const GroupSizes& share = d.group->sizes();
  const Store<false> to{logits + share.first_logit, d.vocab, m.logits_factor, share.num_logits};
  linear(team, d.head, rows, num_logits, to);
  d.group->finish(team);
}

}  // namespace hybrid_model
}  // namespace whet
