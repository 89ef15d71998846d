// One step of a selective state-space model, from token ids to logits, in one region of the pool: norm and in_proj, the
// convolution with SiLU, (Mamba-1) x_proj and dt_proj, the scan with its gate, (Mamba-2) the gated norm, out_proj.
//
// States lie in rows, one for each sequence, in the order of the scan's registers. Everything between matrices is
// float32 whatever the weights are. A sequence's logits are the same, bit for bit, whatever other sequences are in the step and
// however its tokens are divided into steps: each token's states follow from those of the token before it.
#pragma once

#include <algorithm>

#include "../causal_conv/kernel.h"
#include "../decoder/rows.h"
#include "../linear/store.h"
#include "../selective_scan/forward.h"

namespace whet {
namespace selective_model {

struct Layer {
  Weights in_proj, x_proj, dt_proj, out_proj;  // x_proj and dt_proj: of Mamba-1
  const float* norm;
  const float *conv_weight, *conv_bias;  // [taps][conv_size]; [conv_size] or null
  const float* rates;                    // [strips][states][lanes] in the unit of a power of 2; Mamba-2: [heads]
  const float *d, *delta_bias;           // [inner], or [heads]
  const float* gated_norm;               // [inner], of Mamba-2; null where its output is gated alone
  // Of each row: the states at its settled position, and what drafts beyond it have added.
  float* conv_state;   // [rows][taps - 1 + drafts][conv_size], inputs
  float* scan_state;   // [rows][strips][states][lanes]
  float* draft_delta;  // [rows][drafts][delta_width], before bias and softplus
  float* draft_b;      // [rows][drafts][states], of Mamba-1
};

struct Model {
  int32_t per_head, hidden, inner, conv_size, taps, num_states, rank;
  int32_t num_heads, head_dim, num_groups, vocab, num_layers, num_drafts;
  int32_t norms_first;     // Mamba-2's output is normalised before it is gated
  float eps, projection_eps;  // projection_eps: 0 where step sizes, B and C are not normalised
  float delta_min, delta_max;
  float out_factor;        // of what a mixer adds
  const float* in_factors; // [in_width], of what in_proj gives, or null
  const Layer* layers;
  const float* final_norm;
  const float* ones;         // [max(rank, num_states)]
  const uint8_t* embedding;  // [vocab][hidden]
  int32_t embedding_is_bf16;
  Weights head;

  int in_width() const { return per_head ? inner + conv_size + num_heads : 2 * inner; }
  int x_width() const { return rank + 2 * num_states; }
  int delta_width() const { return per_head ? num_heads : inner; }
};

// Tokens of one sequence, side by side in the step. Before them, its states take in again the drafts of earlier steps
// that were accepted.
struct Segment {
  int32_t state_row, first, count;
  int32_t begins;    // the first of them is the first of the sequence
  int32_t replayed;  // the drafts between the settled position and the first of them
  int32_t settles;   // how many of these drafts, and then of the tokens, are settled from now on
  int32_t again;     // the row of the workspace's `again` for the first of these drafts; part_of fills it in

  int num_drafts() const { return replayed + count - settles; }  // not settled after the step
};

struct Tokens {
  int32_t num_tokens, num_segments;
  const Segment* segments;
  int32_t num_replayed, has_drafts;  // part_of fills them in
};

// Tokens that go through a layer together. What lies between its matrices then stays in the caches.
constexpr int PART_TOKENS = 192;
// Strips and channels that a thread takes at once.
constexpr int STRIPS_AT_ONCE = 4, CHANNELS_AT_ONCE = 128;
// States of the next strip that are fetched while one is computed.
constexpr int STATES_AHEAD = 16;
// Lines of the next matrix that a thread fetches beside them: memory would lie idle.
constexpr int LINES_AT_ONCE = 32;

// Room for a step.
struct Workspace {
  std::vector<float> x, wide, convolved, projected, delta, y, scales;
  std::vector<float> again;  // the convolved inputs of replayed drafts, [replayed][conv_size]
  std::vector<int32_t> sums;
  std::vector<uint8_t> rows;

  // Raises std::bad_alloc, as the other.
  void fit_replayed(const Model& m, int num_replayed) { grow(again, static_cast<size_t>(num_replayed) * m.conv_size); }
  void fit(const Model& m, int num_tokens, int num_logits) {
    const size_t part = std::min(num_tokens, PART_TOKENS), at_once = std::max<size_t>(part, num_logits);
    const size_t widest = std::max({m.hidden, m.inner, m.rank}) + 64;
    grow(x, static_cast<size_t>(num_tokens) * m.hidden);
    grow(wide, part * m.in_width());
    grow(convolved, part * m.conv_size);
    grow(y, part * m.inner);
    if (!m.per_head) grow(projected, part * m.x_width()), grow(delta, part * m.inner);
    grow(scales, at_once), grow(sums, at_once);
    grow(rows, at_once * row_bytes(Kind::f32, static_cast<int>(widest)) + 64);
  }
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

// Rows of a buffer, from `column` on.
inline selective_scan::View view_of(const std::vector<float>& buffer, int first, int width, int column) {
  return {buffer.data() + static_cast<size_t>(first) * width + column, 0, width, 0};
}

// The state of a convolution's channels c.. after a segment whose inputs are x: the inputs before the settled position,
// and those of drafts.
inline void keep_inputs(float* state, size_t C, int kept, const Segment& s, const selective_scan::View& x, int c,
                        int width) {
  const auto input = [&](int row) {
    const int t = row - kept - s.replayed;
    if (t >= 0) return x.lanes(0, t, c, width);
    return s.begins ? set1(0.0f) : load_part(state + row * C + c, width, 0.0f);
  };
  for (int k = 0; k < kept + s.num_drafts(); k++) store_part(state + k * C + c, input(s.settles + k), width);
}

// The convolution of some channels, and their state afterwards.
inline void convolve(const Model& m, const Layer& layer, const Segment& s, int begin, int end, Workspace& ws) {
  const int kept = m.taps - 1;
  const size_t C = m.conv_size;
  float* state = layer.conv_state + (kept + m.num_drafts) * C * s.state_row;
  const selective_scan::View x = view_of(ws.wide, s.first, m.in_width(), m.per_head ? m.inner : 0);
  const selective_scan::View drafts{state + kept * C, 0, m.conv_size, 0};
  const float* before = s.begins ? nullptr : state + s.replayed * C;
  const causal_conv::Problem p{1, s.count, m.conv_size, m.taps, 1, x, layer.conv_weight, layer.conv_bias, before};
  const causal_conv::Problem of_drafts{1, s.replayed,        m.conv_size,     m.taps, 1,
                                       drafts, layer.conv_weight, layer.conv_bias, state};
  if (!s.begins) expect_writes(state, m.conv_size, 0, kept, begin, end - begin);
  for (int c = begin; c < end; c += LANES) {
    const int width = std::min(LANES, end - c);
    for (int t = 0; t < s.replayed; t++)
      store_part(ws.again.data() + (s.again + t) * C + c, silu(of_drafts.sum(0, t, c, width)), width);
    for (int t = 0; t < s.count; t++)
      store_part(ws.convolved.data() + (s.first + t) * C + c, silu(p.sum(0, t, c, width)), width);
    keep_inputs(state, C, kept, s, x, c, width);
  }
}

// What a scan reads of one sequence's tokens.
inline selective_scan::Problem scan_of(const Model& m, const Layer& layer, const Segment& s, const Workspace& ws) {
  selective_scan::Problem p{};
  p.batch = 1, p.length = s.count, p.num_states = m.num_states;
  p.num_heads = m.per_head ? m.num_heads : 1, p.head_dim = m.per_head ? m.head_dim : m.inner;
  p.num_groups = m.per_head ? m.num_groups : 1, p.per_head = m.per_head, p.softplus = 1;
  p.delta_min = m.delta_min, p.delta_max = m.delta_max;
  p.u = view_of(ws.convolved, s.first, m.conv_size, 0);
  if (m.per_head) {
    p.delta = view_of(ws.wide, s.first, m.in_width(), m.inner + m.conv_size);
    p.b = view_of(ws.convolved, s.first, m.conv_size, m.inner);
    p.c = view_of(ws.convolved, s.first, m.conv_size, m.inner + m.num_groups * m.num_states);
    p.a = layer.rates;
  } else {
    p.delta = view_of(ws.delta, s.first, m.inner, 0);
    p.b = view_of(ws.projected, s.first, m.x_width(), m.rank);
    p.c = view_of(ws.projected, s.first, m.x_width(), m.rank + m.num_states);
    p.z = view_of(ws.wide, s.first, m.in_width(), m.inner);
  }
  p.d = layer.d, p.delta_bias = layer.delta_bias;
  return p;
}

// The drafts of earlier steps, for a scan whose sums over states are not wanted.
inline selective_scan::Problem scan_of_drafts(const Model& m, const Layer& layer, const Segment& s,
                                              const Workspace& ws) {
  selective_scan::Problem p = scan_of(m, layer, s, ws);
  const size_t row = static_cast<size_t>(m.num_drafts) * s.state_row;
  p.length = s.replayed;
  p.u = view_of(ws.again, s.again, m.conv_size, 0);
  p.delta = {layer.draft_delta + row * m.delta_width(), 0, m.delta_width(), 0};
  p.b = m.per_head ? view_of(ws.again, s.again, m.conv_size, m.inner)
                   : selective_scan::View{layer.draft_b + row * m.num_states, 0, m.num_states, 0};
  p.c = p.b;
  p.z = {nullptr, 0, 0, 0};
  return p;
}

// The scan of one strip of a sequence with drafts, before or now. The states in memory take in what is settled, and a
// copy takes in the rest.
inline void scan_drafts(const selective_scan::Problem& before, const selective_scan::Problem& p, const Segment& segment,
                        const selective_scan::Strip& strip, const float* rates, float* states,
                        const selective_scan::Results& to, selective_scan::Room& room) {
  static thread_local Floats copy;
  int to_settle = segment.settles;
  const auto read = [&](const selective_scan::Problem& tokens, bool is_new) {
    for (int first = 0, count; first < tokens.length; first += count) {
      if (to_settle == 0 && states != copy.data()) {
        copy.resize(p.strip_states());
        states = static_cast<float*>(std::memcpy(copy.data(), states, sizeof(float) * p.strip_states()));
      }
      count = std::min(tokens.length - first, selective_scan::CHUNK);
      if (to_settle > 0) {
        count = std::min(count, to_settle);
        to_settle -= count;
      }
      selective_scan::advance_tokens(tokens, 0, strip, first, count, rates, states, room);
      if (is_new) selective_scan::finish(tokens, 0, strip, first, count, room.tile, to);
    }
  };
  read(before, false);
  read(p, true);
}

// What a later step needs to take in the drafts again.
inline void remember_drafts(const Model& m, const Layer& layer, const Segment& s, const Workspace& ws) {
  const auto keep = [&](float* rows, int width, const float* of_tokens, int stride) {
    float* to = rows + static_cast<size_t>(m.num_drafts) * width * s.state_row;
    for (int i = 0; i < s.num_drafts(); i++) {
      const int from = s.settles + i, t = from - s.replayed;
      const float* row = t < 0 ? to + static_cast<size_t>(from) * width : of_tokens + static_cast<size_t>(t) * stride;
      std::memmove(to + static_cast<size_t>(i) * width, row, sizeof(float) * width);
    }
  };
  const selective_scan::Problem p = scan_of(m, layer, s, ws);
  keep(layer.draft_delta, m.delta_width(), static_cast<const float*>(p.delta.data), p.delta.row_stride);
  if (!m.per_head) keep(layer.draft_b, m.num_states, static_cast<const float*>(p.b.data), p.b.row_stride);
}

// The scan of some strips.
inline void scan(const Model& m, const Layer& layer, const Segment& segment, int begin, int end, Workspace& ws) {
  static thread_local selective_scan::Room room;
  const selective_scan::Problem p = scan_of(m, layer, segment, ws);
  const bool has_drafts = segment.replayed > 0 || segment.num_drafts() > 0;
  const selective_scan::Results to{ws.y.data() + static_cast<size_t>(segment.first) * m.inner, 0, nullptr, nullptr,
                                   nullptr};
  room.fit(p, 0);
  const auto states_of = [&](int i) {
    return layer.scan_state + (static_cast<size_t>(segment.state_row) * p.num_strips() + i) * p.strip_states();
  };
  for (int i = begin; i < end; i++) {
    float* states = states_of(i);
    if (i + 1 < end) expect_writes(states_of(i + 1), 0, 0, 1, 0, std::min(m.num_states, STATES_AHEAD) * LANES);
    if (segment.begins) std::memset(states, 0, sizeof(float) * p.strip_states());
    const float* rates = m.per_head ? nullptr : layer.rates + p.strip_states() * i;
    if (has_drafts) {
      scan_drafts(scan_of_drafts(m, layer, segment, ws), p, segment, selective_scan::Strip(p, i), rates, states, to, room);
      continue;
    }
    for (int chunk = 0; chunk < p.num_chunks(); chunk++)
      selective_scan::forward_strip(p, 0, selective_scan::Strip(p, i), chunk, rates, states, to, room);
  }
}

// y = norm(y silu(z)), norm(y) silu(z), or y silu(z), with a norm of each group of channels.
inline void gated_norm_row(const Model& m, const float* weight, const float* z, float* y) {
  const auto norm = [&] {
    const int size = m.inner / m.num_groups;
    for (int c = 0; c < m.inner; c += size) rms_norm_row(y + c, weight + c, size, m.eps, y + c);
  };
  if (weight != nullptr && m.norms_first) norm();
  for (int c = 0; c < m.inner; c += LANES) {
    const int width = std::min(LANES, m.inner - c);
    store_part(y + c, mul(load_part(y + c, width, 0.0f), silu(load_part(z + c, width, 0.0f))), width);
  }
  if (weight != nullptr && !m.norms_first) norm();
}

inline void multiply_row(const float* factors, int size, float* x) {
  for (int c = 0; c < size; c += LANES) {
    const int width = std::min(LANES, size - c);
    store_part(x + c, mul(load_part(x + c, width, 0.0f), load_part(factors + c, width, 0.0f)), width);
  }
}

// delta, B and C of Mamba-1, from the convolved inputs.
inline void project(Team& team, const Model& m, const Layer& layer, int num_tokens, Workspace& ws) {
  const auto same = [](int row) { return row; };
  Rows rows = ws.rows_for(layer.x_proj);
  prepare(team, layer.x_proj, ws.convolved.data(), m.conv_size, m.inner, nullptr, 0.0f, num_tokens, rows, same);
  linear(team, layer.x_proj, rows, num_tokens, Store<false>{ws.projected.data(), m.x_width()});
  if (m.projection_eps > 0)
    team.each(num_tokens, [&](int t) {
      float* row = ws.projected.data() + static_cast<size_t>(m.x_width()) * t;
      rms_norm_row(row, m.ones, m.rank, m.projection_eps, row);
      for (float* part : {row + m.rank, row + m.rank + m.num_states})
        rms_norm_row(part, m.ones, m.num_states, m.projection_eps, part);
    });
  rows = ws.rows_for(layer.dt_proj);
  expect(team, layer.out_proj);
  prepare(team, layer.dt_proj, ws.projected.data(), m.x_width(), m.rank, nullptr, 0.0f, num_tokens, rows, same);
  linear(team, layer.dt_proj, rows, num_tokens, Store<false>{ws.delta.data(), m.inner});
}

// x [T][hidden] of a part gets what the mixer makes of `from`, which may be x.
// `after`: the matrix that is read next, or null.
inline void mix(Team& team, const Model& m, const Layer& layer, const Weights* after, const Tokens& part,
                const float* from, float* x, Workspace& ws) {
  const auto same = [](int row) { return row; };
  const int T = part.num_tokens;
  Rows rows = ws.rows_for(layer.in_proj);
  prepare(team, layer.in_proj, from, m.hidden, m.hidden, layer.norm, m.eps, T, rows, same);
  expect(team, m.per_head ? layer.out_proj : layer.x_proj);
  linear(team, layer.in_proj, rows, T, Store<false>{ws.wide.data(), m.in_width()});
  if (m.in_factors != nullptr)
    team.each(T, [&](int t) {
      multiply_row(m.in_factors, m.in_width(), ws.wide.data() + static_cast<size_t>(m.in_width()) * t);
    });
  const int groups = (m.conv_size + CHANNELS_AT_ONCE - 1) / CHANNELS_AT_ONCE;
  team.each(groups * part.num_segments, [&](int item) {
    const int begin = item % groups * CHANNELS_AT_ONCE;
    team.fetch_expected(LINES_AT_ONCE);
    convolve(m, layer, part.segments[item / groups], begin, std::min(begin + CHANNELS_AT_ONCE, m.conv_size), ws);
  });
  if (!m.per_head) project(team, m, layer, T, ws);
  const int strips = m.per_head ? m.num_heads * ((m.head_dim + LANES - 1) / LANES) : (m.inner + LANES - 1) / LANES;
  const int bundles = (strips + STRIPS_AT_ONCE - 1) / STRIPS_AT_ONCE;
  team.each(bundles * part.num_segments, [&](int item) {
    const int begin = item % bundles * STRIPS_AT_ONCE;
    team.fetch_expected(LINES_AT_ONCE);
    scan(m, layer, part.segments[item / bundles], begin, std::min(begin + STRIPS_AT_ONCE, strips), ws);
  });
  if (part.has_drafts)
    team.each(part.num_segments, [&](int i) { remember_drafts(m, layer, part.segments[i], ws); });
  if (m.per_head)
    team.each(T, [&](int t) {
      const float* z = ws.wide.data() + static_cast<size_t>(m.in_width()) * t;
      gated_norm_row(m, layer.gated_norm, z, ws.y.data() + static_cast<size_t>(m.inner) * t);
    });
  rows = ws.rows_for(layer.out_proj);
  prepare(team, layer.out_proj, ws.y.data(), m.inner, m.inner, nullptr, 0.0f, T, rows, same);
  if (after != nullptr) expect(team, *after);
  linear(team, layer.out_proj, rows, T, Store<true>{x, m.hidden, m.out_factor});
}

// The tokens first..last - 1 of a step as a step of their own; `cut` gets its segments.
inline Tokens part_of(const Tokens& step, int first, int last, std::vector<Segment>& cut) {
  cut.clear();
  int32_t num_replayed = 0, has_drafts = 0;
  for (int i = 0; i < step.num_segments; i++) {
    const Segment& s = step.segments[i];
    const int begin = std::max(s.first, first), end = std::min(s.first + s.count, last);
    if (begin >= end) continue;
    const int before = begin - s.first, count = end - begin;  // tokens of the sequence in earlier parts, and in this one
    const int settled = before == 0 ? 0 : std::min(s.settles, s.replayed + before);  // since the step began
    cut.push_back({s.state_row, begin - first, count, s.begins && before == 0, s.replayed + before - settled,
                   std::min(s.settles, s.replayed + before + count) - settled, num_replayed});
    num_replayed += cut.back().replayed;
    has_drafts |= cut.back().num_drafts() > 0;
  }
  return {last - first, static_cast<int32_t>(cut.size()), cut.data(), num_replayed, has_drafts};
}

// logits [R][vocab] of the tokens `logit_rows`.
inline void step(Team& team, const Model& m, const std::vector<Tokens>& parts, const int32_t* token_ids, int num_tokens,
                 const int32_t* logit_rows, int num_logits, Workspace& ws, float* logits) {
  team.each(num_tokens, [&](int t) {
    embed(m.embedding, m.embedding_is_bf16, m.hidden, token_ids[t], ws.x.data() + static_cast<size_t>(m.hidden) * t);
  });
  for (int i = 0; i < m.num_layers; i++) {
    float* x = ws.x.data();
    for (const Tokens& part : parts) {
      mix(team, m, m.layers[i], i + 1 < m.num_layers ? &m.layers[i + 1].in_proj : &m.head, part, x, x, ws);
      x += static_cast<size_t>(m.hidden) * part.num_tokens;
    }
  }
  const Rows rows = ws.rows_for(m.head);
  prepare(team, m.head, ws.x.data(), m.hidden, m.hidden, m.final_norm, m.eps, num_logits, rows,
          [&](int i) { return logit_rows[i]; });
  linear(team, m.head, rows, num_logits, Store<false>{logits, m.vocab});
}

}  // namespace selective_model
}  // namespace whet
