// How attention of a batch is shared out: tiles of query rows, long ones cut along their keys.
#pragma once

#include <algorithm>
#include <vector>

#include "tile.h"

namespace whet {

namespace attention {

constexpr int TILE_ROWS = 48;  // query rows that go through the keys together
constexpr int MIN_CHUNKS = 4;  // that a piece of a tile is worth
constexpr int PIECES = 4;      // a thread, so that the last to finish is not far behind

// Rows of a sequence and a key-value head: row r is query head r % group of the step's token r / group.
struct Tile {
  int seq, kv_head, row, num_rows, num_chunks;
  ptrdiff_t parts;  // where its chunks' results lie until they are joined; -1: it is in one piece
  int num_strips() const { return (num_rows + MAX_ROWS - 1) / MAX_ROWS; }
  // strips differ by one row at the most
  int strip_row(int strip) const { return num_rows * strip / num_strips(); }
};
// Some of a tile's chunks.
struct Item {
  int tile, first_chunk, last_chunk;
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
    for (int seq = 0; seq < batch.num_seqs; seq++) add_tiles(heads, batch, seq);
    long total = 0;
    for (const Tile& tile : tiles_) total += cost(tile, tile.num_chunks);
    const long most = num_threads > 1 ? std::max(total / (num_threads * PIECES), 1l) : total;
    size_t num_parts = 0;
    for (size_t i = 0; i < tiles_.size(); i++) num_parts += cut(static_cast<int>(i), most, num_parts);
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
    fit(parts_, num_parts * part_lines(heads.head_dim));
    room_lines_ = lines_of_room(kind, heads.head_dim);
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
  static long cost(const attention::Tile& tile, int num_chunks) { return (tile.num_rows + 4l) * num_chunks; }

  void add_tiles(Heads heads, const Ragged& batch, int seq) {
    using namespace attention;
    const int rows = batch.num_new(seq) * heads.group(), first = batch.first_position(seq);
    for (int kv_head = 0; kv_head < heads.num_kv_heads; kv_head++)
      for (int row = 0; row < rows; row += TILE_ROWS) {
        const int num_rows = std::min(TILE_ROWS, rows - row);
        const int last_position = first + (row + num_rows - 1) / heads.group();
        tiles_.push_back({seq, kv_head, row, num_rows, last_position / CHUNK + 1, -1});
      }
  }

  // A tile that costs more than `most` becomes pieces. Returns how many parts they leave to be joined.
  size_t cut(int index, long most, size_t num_parts) {
    using namespace attention;
    Tile& tile = tiles_[index];
    const int wanted = static_cast<int>((cost(tile, tile.num_chunks) + most - 1) / most);
    const int pieces = std::max(1, std::min(wanted, tile.num_chunks / MIN_CHUNKS));
    for (int i = 0; i < pieces; i++) {
      const int first = tile.num_chunks * i / pieces, last = tile.num_chunks * (i + 1) / pieces;
      items_.push_back({index, first, last, cost(tile, last - first)});
    }
    if (pieces == 1) return 0;
    tile.parts = static_cast<ptrdiff_t>(num_parts);
    for (int strip = 0; strip < tile.num_strips(); strip++) joins_.push_back({index, strip});
    return static_cast<size_t>(tile.num_chunks) * tile.num_strips();
  }

  static size_t lines_of_room(Kv kind, int head_dim);
  static void fit(std::vector<attention::Line>& lines, size_t size) {
    if (lines.size() < size) lines.resize(size);
  }

  std::vector<attention::Tile> tiles_;
  std::vector<attention::Item> items_;
  std::vector<attention::Join> joins_;
  std::vector<attention::Line> parts_, rooms_;
  size_t room_lines_ = 0;
};

}  // namespace whet
