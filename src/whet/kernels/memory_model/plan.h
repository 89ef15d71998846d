// Divide a step into parts, and say what of it each sequence reads, pools and writes. Nothing of a part needs a later one.
#pragma once

#include "../decoder/kernel.h"
#include "layout.h"

namespace whet {
namespace memory_model {

// Tokens of one sequence, side by side. Before them, its memories take in again the drafts of earlier steps that were
// accepted.
struct Segment {
  int32_t row, first, count, position;
  int32_t replayed;  // the drafts between the settled position and the first token
  int32_t settles;   // how many of these drafts, and then of the tokens, are settled from now on

  int num_drafts() const { return replayed + count - settles; }  // not settled after the step
  bool begins() const { return position == 0; }
};

// Tokens of a segment within one span, from token `begin` on; below 0 are drafts that are taken in again.
struct Run {
  int begin, count;
  bool settled, forks, ends_span;  // forks: the first that is not settled, so it goes on from a copy of what is
};

struct Share {
  Part part;
  std::vector<Segment> segments;
  std::vector<std::vector<Run>> runs;  // of each segment
  std::vector<int32_t> positions, block_tables;
  size_t num_rounds;
};

// Where keys and values lie: of each row, `sets` segments of attention, in turn.
struct Window {
  int32_t segment, sets;
  int blocks() const { return (segment + BLOCK - 1) / BLOCK; }
  int block(int row, int position, int index) const {
    return (row * sets + position / segment % sets) * blocks() + index;
  }
};

inline std::vector<Run> runs_of(const Sizes& z, const Segment& s) {
  std::vector<Run> runs;
  const int settled = s.settles - s.replayed;  // in tokens of the segment
  for (int at = -s.replayed; at < s.count;) {
    const int place = s.position + at, to_end = z.span - place % z.span;
    const bool is_settled = at < settled;
    const int count = std::min(to_end, (is_settled ? settled : s.count) - at);
    runs.push_back({at, count, is_settled, at == settled, count == to_end});
    at += count;
  }
  return runs;
}

// Attention of a part: a sequence's tokens of one segment of attention are a sequence of their own.
inline void plan_attention(const Window& window, Heads heads, Kv kind, Share& share, int first, int num_threads) {
  Part& part = share.part;
  part.first = first;
  part.query_start.assign(1, 0), part.context_len.clear();
  share.positions.clear(), share.block_tables.clear();
  int num_tokens = 0;
  for (const Segment& s : share.segments)
    for (int at = s.position, end = s.position + s.count; at < end;) {
      const int stop = std::min(end, (at / window.segment + 1) * window.segment);
      for (int position = at; position < stop; position++) share.positions.push_back(position % window.segment);
      for (int i = 0; i < window.blocks(); i++) share.block_tables.push_back(window.block(s.row, at, i));
      num_tokens += stop - at;
      part.query_start.push_back(num_tokens), part.context_len.push_back((stop - 1) % window.segment + 1);
      at = stop;
    }
  part.batch = {num_tokens,
                static_cast<int32_t>(part.context_len.size()),
                share.positions.data(),
                part.query_start.data(),
                part.context_len.data(),
                share.block_tables.data(),
                window.blocks()};
  part.scratch.plan(heads, kind, part.batch, num_threads);
}

// Segments with their tokens' places in the parts. A segment is cut where the tokens before are all settled, so that one
// of more than PART_TOKENS is cut unless it has more drafts. A part has one segment of a row at most: they run side by
// side.
inline void divide(const Segment* segments, int num_segments, std::vector<std::vector<Segment>>& parts) {
  parts.clear();
  int room = 0;
  for (int i = 0; i < num_segments; i++) {
    Segment rest = segments[i];
    while (rest.count > 0) {
      if (room <= 0) parts.emplace_back(), room = PART_TOKENS;
      Segment now = rest;
      const int settled = rest.settles - rest.replayed;  // of the tokens
      if (rest.count > room && settled > 0) {
        now.count = std::min(room, settled), now.settles = rest.replayed + now.count;
        rest.settles -= now.settles, rest.replayed = 0;
      }
      now.first = PART_TOKENS - room;
      rest.count -= now.count, rest.position += now.count;
      room = rest.count > 0 ? 0 : room - now.count;
      parts.back().push_back(now);
    }
  }
}

}  // namespace memory_model
}  // namespace whet
