// How attention of a batch is shared out: tiles of query rows, in bundles of neighbouring heads, long ones cut along
// their keys.
#pragma once

#include <algorithm>
#include <vector>

#include "tile.h"

namespace whet {

namespace attention {

constexpr int TILE_ROWS = 48;          // query rows that go through the keys together
constexpr int MIN_CHUNKS = 4;          // that a piece of a tile is worth
constexpr int PIECES = 4;              // a thread, so that the last to finish is not far behind
constexpr size_t BUNDLE_BYTES = 8192;  // of a block, that lie side by side: the memory is fastest at whole pages

// Rows of a sequence and a key-value head: row r is query head r % group of the step's token r / group.
struct Tile {
  int seq, kv_head, row, num_rows, num_chunks;
  ptrdiff_t parts;  // where its chunks' results lie until they are joined; -1: it is in one piece
  int num_strips() const { return (num_rows + MAX_ROWS - 1) / MAX_ROWS; }
  // strips differ by one row at the most
  int strip_row(int strip) const { return num_rows * strip / num_strips(); }
};
// Some chunks of tiles that have the same rows in neighbouring heads.
struct Item {
  int tile, num_tiles, first_chunk, last_chunk;
  long cost;
};
// A strip of a tile in pieces.
struct Join {
  int tile, strip;
};

struct alignas(64) Line {
  float at[LANES];
};

// What one chunk leaves of one strip: its state, then its rows.
inline size_t part_lines(int head_dim) { return (sizeof(State) + sizeof(float) * MAX_ROWS * head_dim) / sizeof(Line); }

}  // namespace attention

// Work and room for one batch, the same for all layers; `plan` before the region, by one thread.
class AttentionScratch {
 public:
  // Raises std::bad_alloc.
  void plan(Heads heads, Kv kind, const Ragged& batch, int num_threads) {
    using namespace attention;
    tiles_.clear(), items_.clear(), joins_.clear();
    num_parts_ = 0;
    long total = 0;
    for (int seq = 0; seq < batch.num_seqs; seq++) total += cost_of(heads, batch, seq);
    most_ = num_threads > 1 ? std::max(total / (num_threads * PIECES), 1l) : total;
    for (int seq = 0; seq < batch.num_seqs; seq++) add_sequence(heads, kind, batch, seq);
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
    fit(parts_, num_parts_ * part_lines(heads.head_dim));
    room_lines_ = lines_of_room(heads.head_dim);
    fit(rooms_, room_lines_ * num_threads);
  }

  const std::vector<attention::Tile>& tiles() const { return tiles_; }
  const std::vector<attention::Item>& items() const { return items_; }
  const std::vector<attention::Join>& joins() const { return joins_; }
  attention::Line* part(const attention::Tile& tile, int chunk, int strip, int head_dim) {
    const size_t index = tile.parts + static_cast<size_t>(chunk) * tile.num_strips() + strip;
    return parts_.data() + index * attention::part_lines(head_dim);
  }
  attention::Line* room(int rank) { return rooms_.data() + room_lines_ * rank; }

 private:
  // The keys are read once for all rows, which counts as four rows more.
  static long cost(int num_rows, int num_chunks) { return (num_rows + 4l) * num_chunks; }
  static int chunks_until(int position) { return position / attention::CHUNK + 1; }

  static long cost_of(Heads heads, const Ragged& batch, int seq) {
    using namespace attention;
    const int rows = batch.num_new(seq) * heads.group(), first = batch.first_position(seq);
    long total = 0;
    for (int row = 0; row < rows; row += TILE_ROWS) {
      const int end = std::min(rows, row + TILE_ROWS);
      total += cost(end - row, chunks_until(first + (end - 1) / heads.group()));
    }
    return total * heads.num_kv_heads;
  }

  void add_sequence(Heads heads, Kv kind, const Ragged& batch, int seq) {
    using namespace attention;
    const int rows = batch.num_new(seq) * heads.group(), first = batch.first_position(seq);
    const int tile_bytes = BLOCK * heads.head_dim * bytes_of(kind);
    for (int row = 0; row < rows; row += TILE_ROWS) {
      const int num_rows = std::min(TILE_ROWS, rows - row);
      const int num_chunks = chunks_until(first + (row + num_rows - 1) / heads.group());
      int bundle = std::min<int>(BUNDLE_BYTES / tile_bytes, TILE_ROWS / num_rows);
      // One at a time where the threads would not have enough to share
      if (pieces_of(cost(num_rows, num_chunks) * heads.num_kv_heads) > std::max(1, num_chunks / MIN_CHUNKS)) bundle = 1;
      for (int head = 0; head < heads.num_kv_heads; head += bundle) {
        const int tile = static_cast<int>(tiles_.size()), num_tiles = std::min(bundle, heads.num_kv_heads - head);
        for (int i = 0; i < num_tiles; i++) tiles_.push_back({seq, head + i, row, num_rows, num_chunks, -1});
        cut(tile, num_tiles);
      }
    }
  }

  int pieces_of(long cost) const { return static_cast<int>((cost + most_ - 1) / most_); }

  void cut(int tile, int num_tiles) {
    using namespace attention;
    const int num_chunks = tiles_[tile].num_chunks, num_rows = tiles_[tile].num_rows;
    const long whole = cost(num_rows, num_chunks) * num_tiles;
    const int pieces = std::max(1, std::min(pieces_of(whole), num_chunks / MIN_CHUNKS));
    for (int i = 0; i < pieces; i++)
      items_.push_back({tile, num_tiles, num_chunks * i / pieces, num_chunks * (i + 1) / pieces, whole / pieces});
    if (pieces == 1) return;
    for (int i = tile; i < tile + num_tiles; i++) {
      const int strips = tiles_[i].num_strips();
      tiles_[i].parts = static_cast<ptrdiff_t>(num_parts_);
      num_parts_ += static_cast<size_t>(num_chunks) * strips;
      for (int strip = 0; strip < strips; strip++) joins_.push_back({i, strip});
    }
  }

  static size_t lines_of_room(int head_dim);
  static void fit(std::vector<attention::Line>& lines, size_t size) {
    if (lines.size() < size) lines.resize(size);
  }

  std::vector<attention::Tile> tiles_;
  std::vector<attention::Item> items_;
  std::vector<attention::Join> joins_;
  std::vector<attention::Line> parts_, rooms_;
  size_t room_lines_ = 0, num_parts_ = 0;
  long most_ = 1;
};

}  // namespace whet
