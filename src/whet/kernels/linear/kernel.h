// y = x W^T over a packed matrix, for one row or many, in one region of the pool.
#pragma once

#include <vector>

#include "../pool.h"
#include "rows.h"
#include "tile.h"

namespace whet {

// A finished tile: rows x (16 * strips) floats, `stride` apart, of rows `row`.. and outputs `column`..
struct Finished {
  const float* y;
  int stride, row, num_rows, column, num_columns;
};

// Fetch the part of rows of `stride` floats that a tile will be written to: by the time that it is done it is there.
inline void expect_writes(const float* rows, int stride, int row, int num_rows, int column, int num_columns) {
  for (int m = 0; m < num_rows; m++)
    for (int c = 0; c < num_columns; c += LANES)
      prefetch_to_write(rows + static_cast<size_t>(stride) * (row + m) + column + c);
}

namespace detail {

template <int MR, int NR>
void scaled(const Weights& weights, const Rows& rows, int row, int column, const I (&sum)[MR][NR], float* y) {
  F scale[NR];
  unrolled<NR>([&](auto n) { scale[n] = load(weights.scale + column + LANES * n); });
  unrolled<MR>([&](auto m) {
    const F of_row = set1(rows.scale[row + m]);
    unrolled<NR>([&](auto n) { store(y + PANEL * m + LANES * n, mul(to_float(sum[m][n]), mul(scale[n], of_row))); });
  });
}

template <int MR, int NR>
void add_bias(const Weights& weights, int column, float* y) {
  if (weights.bias == nullptr) return;
  for (int m = 0; m < MR; m++)
    for (int n = 0; n < NR; n++) {
      float* at = y + PANEL * m + LANES * n;
      store(at, add(load(at), load(weights.bias + column + LANES * n)));
    }
}

template <Kind KIND, int MR, int NR>
void tile(const uint8_t* w, const Ahead& ahead, const Weights& weights, const Rows& rows, int row, int column, float* y) {
  if constexpr (KIND == Kind::s8 || KIND == Kind::s4) {
    I sum[MR][NR];
    if constexpr (KIND == Kind::s8)
      Product<MR, NR>::s8(w, ahead, rows, row, weights.k, sum);
    else
      Product<MR, NR>::s4(w, NR, 0, ahead, rows, row, weights.k, sum);
    scaled<MR, NR>(weights, rows, row, column, sum, y);
  } else {
    F sum[MR][NR];
    if constexpr (KIND == Kind::f32)
      Product<MR, NR>::f32(w, ahead, rows, row, weights.k, sum);
    else
      Product<MR, NR>::bf16(w, ahead, rows, row, weights.k, sum);
    for (int m = 0; m < MR; m++)
      for (int n = 0; n < NR; n++) store(y + PANEL * m + LANES * n, sum[m][n]);
  }
  add_bias<MR, NR>(weights, column, y);
}

// A tile of the strips `first`.. of a panel of s4; y is where the panel's first strip goes.
template <int MR, int NR>
void wide_tile(const uint8_t* w, int strips, int first, const Ahead& ahead, const Weights& weights, const Rows& rows,
               int row, int column, float* y) {
  I sum[MR][NR];
  Product<MR, NR>::s4(w, strips, first, ahead, rows, row, weights.k, sum);
  scaled<MR, NR>(weights, rows, row, column + LANES * first, sum, y + LANES * first);
  add_bias<MR, NR>(weights, column + LANES * first, y + LANES * first);
}

using TileFunction = void (*)(const uint8_t*, const Ahead&, const Weights&, const Rows&, int, int, float*);

template <Kind KIND, int NR, int... ROWS>
TileFunction tile_of_rows(int num_rows, std::integer_sequence<int, ROWS...>) {
  static constexpr TileFunction table[] = {tile<KIND, ROWS + 1, NR>...};
  return table[num_rows - 1];
}

template <Kind KIND>
TileFunction tile_of(int num_rows, int num_strips) {
  constexpr auto rows = std::make_integer_sequence<int, max_rows(KIND)>();
  switch (num_strips) {
    case 1: return tile_of_rows<KIND, 1>(num_rows, rows);
    case 2: return tile_of_rows<KIND, 2>(num_rows, rows);
    case 3: return tile_of_rows<KIND, 3>(num_rows, rows);
    default: return tile_of_rows<KIND, 4>(num_rows, rows);
  }
}

inline TileFunction tile_function(Kind kind, int num_rows, int num_strips) {
  switch (kind) {
    case Kind::f32: return tile_of<Kind::f32>(num_rows, num_strips);
    case Kind::bf16: return tile_of<Kind::bf16>(num_rows, num_strips);
    case Kind::s8: return tile_of<Kind::s8>(num_rows, num_strips);
    default: return tile_of<Kind::s4>(num_rows, num_strips);
  }
}

using WideTileFunction = void (*)(const uint8_t*, int, int, const Ahead&, const Weights&, const Rows&, int, int, float*);

template <int NR, int... ROWS>
WideTileFunction wide_tile_of(int num_rows, std::integer_sequence<int, ROWS...>) {
  static constexpr WideTileFunction table[] = {wide_tile<ROWS + 1, NR>...};
  return table[num_rows - 1];
}

// All strips of a panel of s4 for up to WIDE_ROWS rows. The first tile fetches what comes next of the panel, the others
// their shares of the next panel.
inline void wide_tiles(const uint8_t* w, const uint8_t* next, int pass, int passes, const Weights& weights, int panel,
                       const Rows& rows, int row, int num_rows, float* y) {
  constexpr auto counts = std::make_integer_sequence<int, WHET_ISA == 512 ? WIDE_ROWS : 1>();
  const int strips = weights.strips_of(panel), parts = (strips + WIDE_STRIPS - 1) / WIDE_STRIPS;
  const size_t bytes = weights.strip_bytes() * STRIPS;
  for (int part = 0; part < parts; part++) {
    const int first = part * WIDE_STRIPS, turn = parts * pass + part;
    const auto function = strips - first >= WIDE_STRIPS ? wide_tile_of<WIDE_STRIPS>(num_rows, counts)
                                                        : wide_tile_of<1>(num_rows, counts);
    const Ahead ahead = turn == 0 || next == nullptr
                            ? Ahead::of_panel(Kind::s4, w, strips, steps(Kind::s4, weights.k), nullptr)
                            : Ahead::of_next(next, bytes, steps(Kind::s4, weights.k), turn - 1, parts * passes - 1);
    function(w, strips, first, ahead, weights, rows, row, panel * PANEL, y);
  }
}

inline void unpack_panel(int num_strips, const uint8_t* w, int k, uint8_t* to) {
  switch (num_strips) {
    case 1: return unpack_s4<1>(w, k, to);
    case 2: return unpack_s4<2>(w, k, to);
    case 3: return unpack_s4<3>(w, k, to);
    default: return unpack_s4<4>(w, k, to);
  }
}

}  // namespace detail

// Rows from which s4 is multiplied in tiles two strips wide, which unpack it to registers; and rows from which a panel is
// unpacked to memory, once for all.
constexpr int WIDE_FROM = max_rows(Kind::s4) + 1, UNPACK_FROM = WHET_ISA == 512 ? 2 * WIDE_ROWS + 1 : WIDE_FROM;
// Tiles from which the next panel is fetched slowly: arithmetic takes so long that lines fetched at once would only be
// in the way.
constexpr int MANY_PASSES = 8;
// Rows that share a panel while it lies in the second-level cache; beside it lie their activations.
constexpr int ROW_BLOCK = 192;

// Rows of the next tile, of those that are left. A last tile of one or two would wait for its weights, so the last two
// share.
inline int tile_rows(int num_left, int most) {
  return num_left <= most ? num_left : num_left < most + most / 2 ? (num_left + 1) / 2 : most;
}

// Rows of the largest tile.
constexpr int MOST_ROWS = WIDE_ROWS > max_rows(Kind::f32) ? WIDE_ROWS : max_rows(Kind::f32);

// One panel times the rows row0..row1: `done(Finished)` is called for every tile, by the thread that made it, and
// before that `done.expect(row, num_rows, column)`. `next`: the panel that the thread reads after this one, or null.
template <typename Done>
void panel_times_rows(const Weights& weights, int panel, const uint8_t* next, const Rows& rows, int row0, int row1,
                      Done done) {
  alignas(64) float y[MOST_ROWS * PANEL];
  const int strips = weights.strips_of(panel), column = panel * PANEL;
  const uint8_t* w = weights.panel(panel);
  Kind kind = weights.kind;
  if (kind == Kind::s4 && row1 - row0 >= UNPACK_FROM) {
    static thread_local std::vector<uint8_t> unpacked;
    unpacked.resize(static_cast<size_t>(PANEL) * weights.k + AHEAD);
    detail::unpack_panel(strips, w, weights.k, unpacked.data());
    w = unpacked.data();
    kind = Kind::s8;
  }
  const bool is_wide = kind == Kind::s4 && row1 - row0 >= WIDE_FROM;
  const int most = is_wide ? WIDE_ROWS : max_rows(kind), passes = (row1 - row0 + most - 1) / most;
  const size_t bytes = weights.strip_bytes() * STRIPS;
  for (int pass = 0, row = row0; row < row1; pass++) {
    const int num_rows = tile_rows(row1 - row, most);
    Ahead ahead = Ahead::of_panel(kind, w, strips, steps(kind, weights.k), passes == 1 ? next : nullptr);
    if (next != nullptr && passes >= MANY_PASSES && row0 == 0)  // later blocks find the weights in the last cache
      ahead = Ahead::spread(next, bytes, steps(kind, weights.k), pass, passes);
    else if (next != nullptr && passes > 1 && passes < MANY_PASSES && pass < STRIPS)
      ahead = Ahead::of_next(next, bytes, steps(kind, weights.k), pass, passes);
    if (passes > 1) done.expect(row, num_rows, column);
    if (is_wide)
      detail::wide_tiles(w, next, pass, passes, weights, panel, rows, row, num_rows, y);
    else
      detail::tile_function(kind, num_rows, strips)(w, ahead, weights, rows, row, column, y);
    done(Finished{y, PANEL, row, num_rows, column, strips * LANES});
    row += num_rows;
  }
}

// Have a thread fetch ahead the beginning of the panel that it will take first.
inline void expect(Team& team, const Weights& weights) {
  constexpr size_t MOST = 64 * 1024;  // of a second-level cache
  if (team.rank() >= weights.num_panels()) return;
  const size_t bytes = weights.strip_bytes() * weights.strips_of(team.rank());
  team.expect(weights.panel(team.rank()), bytes < MOST ? bytes : MOST);
}

// All panels times all rows, shared out among the team. Ends with a barrier.
template <typename Done>
void linear(Team& team, const Weights& weights, const Rows& rows, int num_rows, Done done) {
  const int blocks = (num_rows + ROW_BLOCK - 1) / ROW_BLOCK, panels = weights.num_panels();
  team.each_from_rank(blocks * panels, [&](int item, int next) {
    const int row0 = item / panels * ROW_BLOCK;
    const int row1 = row0 + ROW_BLOCK < num_rows ? row0 + ROW_BLOCK : num_rows;
    panel_times_rows(weights, item % panels, next < 0 ? nullptr : weights.panel(next % panels), rows, row0, row1, done);
  });
}

}  // namespace whet
