// One step of a decoder with long-term memory, from token ids to logits, in one region of the pool: attention within
// segments, the memories, and the MLP of each layer. Attention and MLP are those of decoder/.
//
// A sequence's logits are the same, bit for bit, whatever other sequences are in the step and however its tokens are
// divided into steps.
#pragma once

#include "bank.h"
#include "plan.h"
#include "test_time.h"

namespace whet {
namespace memory_model {

struct Model {
  Decoder decoder;
  Sizes sizes;
  Window window;
  int32_t num_drafts;
  const Layer* layers;          // of each layer
  const int32_t* has_memories;  // of each layer
};

// Room for a step.
struct Workspace {
  whet::Workspace decoder;
  std::vector<float> into, shares, read;  // [part][in_width], [part][lanes], [part][out_width]
  std::vector<std::vector<Segment>> cut;
  std::vector<Share> parts;  // the first num_parts
  int num_parts = 0;

  // Raises std::bad_alloc.
  void fit(const Model& m, const Segment* segments, int num_segments, int num_tokens, int num_logits, int num_threads) {
    divide(segments, num_segments, cut);
    num_parts = static_cast<int>(cut.size());
    if (parts.size() < cut.size()) parts.resize(cut.size());
    int first = 0, most = 0;
    for (int i = 0; i < num_parts; i++) {
      Share& share = parts[i];
      share.segments = cut[i], share.runs.clear(), share.num_rounds = 0;
      for (const Segment& s : share.segments) {
        share.runs.push_back(runs_of(m.sizes, s));
        share.num_rounds = std::max(share.num_rounds, share.runs.back().size());
      }
      plan_attention(m.window, m.decoder.heads, m.decoder.layers[0].cache.kind, share, first, num_threads);
      first += share.part.batch.num_tokens;
      most = std::max(most, share.part.batch.num_tokens);
    }
    const size_t widest = std::max(m.sizes.C() + m.sizes.heads * m.sizes.c(), m.sizes.out_width());
    decoder.fit_rows(m.decoder, num_tokens, most, num_logits, widest);
    into.resize(std::max(into.size(), size_t(most) * m.sizes.in_width()));
    shares.resize(std::max(shares.size(), size_t(most) * m.sizes.lanes()));
    read.resize(std::max(read.size(), size_t(most) * m.sizes.out_width()));
  }
};

// What the first matrix gave for a token becomes what the memories take.
inline void finish_token(const Sizes& z, const Layer& layer, float* row) {
  if (z.slots > 0) {
    const int C = z.C();
    F squares = set1(0.0f);
    for (int i = 0; i < C; i += LANES) squares = fma(load(row + i), load(row + i), squares);
    const F scale = set1(1 / std::sqrt(reduce_add(squares) / z.width + z.eps));
    for (int i = 0; i < C; i += LANES) {
      store(row + i, mul(mul(load(row + i), scale), load(layer.q_norm + i)));
      store(row + z.value() + i, mul(load(row + z.value() + i), sigmoid(load(row + z.channel() + i))));
    }
    row[z.gates() + 1] = 1 / (1 + std::exp(-GATE_SPEED * row[z.gates() + 1]));
  }
  if (z.depth == 0) return;
  for (int which = 0; which < 2; which++)
    for (int head = 0; head < z.heads; head++) {
      float* x = row + z.part(which, head);
      const F scale = set1(1 / std::max(std::sqrt(dot(z, x, x)), 1e-6f));
      for (int i = 0; i < z.c(); i += LANES) store(x + i, mul(load(x + i), scale));
    }
  float* rates = row + z.rates();
  for (int i = 0; i < 3 * z.heads; i++) rates[i] = 1 / (1 + std::exp(i < 2 * z.heads ? -rates[i] : rates[i]));
  rates[3 * z.heads] = 1 / (1 + std::exp(-rates[3 * z.heads]));
}

// One layer's memories in one part.
struct Memories {
  const Model& m;
  const Sizes& z;
  const Layer& layer;
  const Share& share;
  Workspace& ws;

  float* settled(int row) const { return layer.state + z.state_size() * row; }
  float* beyond(int row) const { return layer.beyond + z.state_size() * row; }
  float* drafts(int row) const { return layer.drafts + size_t(m.num_drafts) * z.draft_size() * row; }
  float* row_of(int token) const { return ws.into.data() + size_t(z.in_width()) * token; }
  float* shares_of(int token) const { return ws.shares.data() + size_t(z.lanes()) * token; }
  float* read_of(int token) const { return ws.read.data() + size_t(z.out_width()) * token; }
  // What token `at` of a segment gave, or a draft before it.
  const float* given(const Segment& s, int at) const {
    return at < 0 ? drafts(s.row) + size_t(z.draft_size()) * (s.replayed + at) : row_of(s.first + at);
  }
  const float* shares_given(const Segment& s, int at) const {
    return at < 0 ? given(s, at) + z.in_width() : shares_of(s.first + at);
  }

  void read(const Segment& s, const Run& run, int at) const {
    if (at < 0) return;
    const int token = s.first + at;
    if (s.begins() && run.begin == 0) {  // nothing has been written
      std::memset(shares_of(token), 0, sizeof(float) * z.lanes());
      std::memset(read_of(token), 0, sizeof(float) * z.C());
      return;
    }
    float* state = run.settled || run.forks ? settled(s.row) : beyond(s.row);
    const float* row = row_of(token);
    read_bank(z, state, row, row[z.gates() + 1], shares_of(token), read_of(token));
  }

  void pool(const Segment& s, const Run& run, int index) const {
    if (s.begins() && run.begin == 0) clear_strip(z, Strip(z, settled(s.row), index), index);
    if (run.forks)
      std::memcpy(Strip(z, beyond(s.row), index).contents, Strip(z, settled(s.row), index).contents,
                  sizeof(float) * z.strip_size());
    const Strip strip(z, run.settled ? settled(s.row) : beyond(s.row), index);
    for (int at = run.begin; at < run.begin + run.count; at++) {
      const float place = ((s.position + at) % z.span + 0.5f) / z.span;
      pool_token(z, layer, strip, index, given(s, at), place, shares_given(s, at));
    }
    if (run.ends_span) write_strip(z, layer, strip, index);
  }

  void learn(const Segment& s, int head) const {
    static thread_local Bench bench(z);
    if (bench.room.size() != 5ul * z.c()) bench = Bench(z);
    float* state = head_of(z, settled(s.row), head);
    const size_t size = z.depth * z.matrix();
    if (s.begins()) {
      std::memcpy(state + size, layer.first + size * head, sizeof(float) * size);
      std::memset(state + 2 * size, 0, sizeof(float) * size);
    }
    for (int at = -s.replayed; at < s.count; at++) {
      if (at == s.settles - s.replayed) {
        float* copy = head_of(z, beyond(s.row), head);
        std::memcpy(copy, state, sizeof(float) * z.head_size());
        state = copy;
      }
      const float* row = given(s, at);
      learn_token(z, layer, head, row, (s.position + at) % z.chunk == 0, state, bench);
      if (at < 0) continue;
      float* y = read_of(s.first + at) + z.read_of_head(head);
      read_head(z, layer, head, row, row[z.rates() + 3 * z.heads], state, y, bench);
    }
  }

  // Keep what is needed to take in again the drafts that are not settled.
  void keep_drafts(const Segment& s) const {
    for (int i = 0; i < s.num_drafts(); i++) {
      const int at = s.settles - s.replayed + i;
      float* to = drafts(s.row) + size_t(z.draft_size()) * i;
      std::memmove(to, given(s, at), sizeof(float) * z.in_width());
      std::memmove(to + z.in_width(), shares_given(s, at), sizeof(float) * z.lanes());
    }
  }
};

// x [T][hidden] of a part gets what its tokens read of the memories.
inline void remember(Team& team, const Model& m, const Layer& layer, const Share& share, float* x, Workspace& ws) {
  const auto same = [](int row) { return row; };
  const Sizes& z = m.sizes;
  const int T = share.part.batch.num_tokens, D = m.decoder.hidden, S = static_cast<int>(share.segments.size());
  Rows rows = ws.decoder.rows_for(layer.into);
  prepare(team, layer.into, x, D, D, layer.norm, m.decoder.eps, T, rows, same);
  linear(team, layer.into, rows, T, Store<false>{ws.into.data(), z.in_width()});
  const Memories memories{m, z, layer, share, ws};
  team.each(T, [&](int t) { finish_token(z, layer, memories.row_of(t)); });
  if (z.depth > 0)
    team.each(S * z.heads, [&](int item) { memories.learn(share.segments[item / z.heads], item % z.heads); });
  for (size_t round = 0; z.slots > 0 && round < share.num_rounds; round++) {
    team.each(T, [&](int t) {
      const auto after = [](int token, const Segment& s) { return token < s.first; };
      const int i = static_cast<int>(std::upper_bound(share.segments.begin(), share.segments.end(), t, after) -
                                     share.segments.begin()) - 1;
      const Segment& s = share.segments[i];
      if (round >= share.runs[i].size()) return;
      const Run& run = share.runs[i][round];
      const int at = t - s.first;
      if (run.begin <= at && at < run.begin + run.count) memories.read(s, run, at);
    });
    team.each(S * z.strips(), [&](int item) {
      const int i = item / z.strips();
      if (round < share.runs[i].size()) memories.pool(share.segments[i], share.runs[i][round], item % z.strips());
    });
  }
  team.each(S, [&](int i) { memories.keep_drafts(share.segments[i]); });
  rows = ws.decoder.rows_for(layer.out);
  prepare(team, layer.out, ws.read.data(), z.out_width(), z.out_width(), nullptr, 0.0f, T, rows, same);
  linear(team, layer.out, rows, T, Store<true>{x, D});
}

// logits [R][vocab] of the tokens `logit_rows`.
inline void step(Team& team, const Model& m, int num_tokens, const int32_t* token_ids, const int32_t* logit_rows,
                 int num_logits, Workspace& ws, float* logits) {
  const Decoder& d = m.decoder;
  team.each(num_tokens, [&](int t) {
    embed(d.embedding, d.embedding_is_bf16, d.hidden, token_ids[t], ws.decoder.x.data() + size_t(d.hidden) * t);
  });
  for (int i = 0; i < d.num_layers; i++)
    for (int j = 0; j < ws.num_parts; j++) {
      Share& share = ws.parts[j];
      float* x = ws.decoder.x.data() + size_t(d.hidden) * share.part.first;
      attend(team, d, d.layers[i], share.part, x, x, ws.decoder);
      if (m.has_memories[i]) remember(team, m, m.layers[i], share, x, ws);
      if (d.intermediate > 0) mlp(team, d, d.layers[i], share.part.batch.num_tokens, x, ws.decoder);
    }
  const Rows rows = ws.decoder.rows_for(d.head);
  prepare(team, d.head, ws.decoder.x.data(), d.hidden, d.hidden, d.final_norm, d.eps, num_logits, rows,
          [&](int i) { return logit_rows[i]; });
  linear(team, d.head, rows, num_logits, Store<false>{logits, d.vocab});
}

}  // namespace memory_model
}  // namespace whet
