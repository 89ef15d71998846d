// A linear layer with what stands before it (a norm) and after it (an activation, a product with the other half of a
// gated MLP, a residual).
#pragma once

#include "../linear/kernel.h"
#include "activations.h"
#include "norm.h"

namespace whet::graph {

// out = activation(norm(x) W^T + bias) + residual. Gated: the strips of the matrix are in turn those of gate and up, and
// activation(gate) * up stands in place of the activation.
struct Linear {
  View x, out, residual;  // data of residual is null where there is none; residual may be out
  Weights weights;
  Norm norm;
  int32_t has_norm, is_gated;
  Activation activation;
};

// What becomes of a finished tile.
struct Finish {
  const Linear& op;
  const Chosen& chosen;

  void expect(int row, int num_rows, int column) const {
    const int first = op.is_gated ? column / 2 : column, width = op.is_gated ? PANEL / 2 : PANEL;
    for (int m = 0; m < num_rows; m++) {
      const float* to = op.out.row(chosen[row + m]) + first;
      for (int c = 0; c < std::min(width, op.out.width() - first); c += LANES) prefetch_to_write(to + c);
    }
  }
  void operator()(const Finished& tile) const {
    with_activation(op.activation, [&](auto activation) {
      op.is_gated ? finish<decltype(activation)::value, true>(tile) : finish<decltype(activation)::value, false>(tile);
    });
  }

 private:
  template <Activation A, bool GATED>
  void finish(const Finished& tile) const {
    constexpr int STRIDE = GATED ? 2 * LANES : LANES;  // of strips of the tile that make one of the output
    const int first = GATED ? tile.column / 2 : tile.column;
    const int width = std::min(tile.num_columns / (STRIDE / LANES), op.out.width() - first);
    for (int m = 0; m < tile.num_rows; m++) {
      const float* y = tile.y + tile.stride * m;
      const int64_t row = chosen[tile.row + m];
      float* to = op.out.row(row) + first;
      const float* residual = op.residual.data == nullptr ? nullptr : op.residual.row(row) + first;
      for (int c = 0; c < width; c += LANES, y += STRIDE) {
        const int count = std::min(LANES, width - c);
        F value = activate<A>(load(y));
        if constexpr (GATED) value = mul(value, load(y + LANES));
        if (residual != nullptr) value = add(value, load_part(residual + c, count, 0.0f));
        store_part(to + c, value, count);
      }
    }
  }
};

// Room for the rows of any linear layer of a plan, prepared.
struct Room {
  std::vector<uint8_t> rows;
  std::vector<float> scales;
  std::vector<int32_t> sums;

  // Raises std::bad_alloc.
  void fit(const Linear& op) {
    const size_t count = op.x.num_rows(), bytes = row_bytes(op.weights.kind, op.weights.k) * count + 64;
    if (rows.size() < bytes) rows.resize(bytes);
    if (scales.size() < count) scales.resize(count), sums.resize(count);
  }
  Rows rows_for(const Weights& weights) const {
    const auto at = reinterpret_cast<uintptr_t>(rows.data());
    return {reinterpret_cast<const uint8_t*>((at + 63) / 64 * 64), row_bytes(weights.kind, weights.k), scales.data(),
            sums.data()};
  }
};

// Make rows ready for the matrix. `before`: a norm whose results are the layer's input, done on the way, or null.
inline void prepare(Team& team, const Linear& op, const Chosen& chosen, const Normalise* before, const Rows& rows) {
  const int count = static_cast<int>(chosen.count(op.x.num_rows())), width = op.x.width();
  team.each((count + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, [&](int item) {
    for (int r = item * ROWS_AT_ONCE; r < std::min(count, (item + 1) * ROWS_AT_ONCE); r++) {
      if (before != nullptr) normalise_row(*before, chosen[r]);
      const float* from = op.x.row(chosen[r]);
      if (op.has_norm) {
        static thread_local Floats normalised;
        normalised.resize(width);
        normalise_row(from, op.norm, width, normalised.data());
        from = normalised.data();
      }
      prepare_row(op.weights.kind, from, width, op.weights.k, rows, r);
    }
  });
}

// Rows that share a panel while it lies in the second-level cache, in blocks of about equal size: a last block of a few
// rows would read all weights for them alone.
constexpr int MOST_ROWS_OF_BLOCK = 208;

inline void linear(Team& team, const Linear& op, const Chosen& chosen, const Normalise* before, const Room& room) {
  const Weights& weights = op.weights;
  const int num_rows = static_cast<int>(chosen.count(op.x.num_rows())), panels = weights.num_panels();
  Rows rows = room.rows_for(weights);
  if (weights.kind == Kind::f32 && !op.has_norm && before == nullptr && chosen.rows == nullptr && op.x.is_flat())
    rows = {op.x.data, sizeof(float) * op.x.stride[DIMS - 2], nullptr, nullptr};
  else
    prepare(team, op, chosen, before, rows);
  constexpr int TILE = max_rows(Kind::s8);
  const int blocks = std::max(1, (num_rows + MOST_ROWS_OF_BLOCK - 1) / MOST_ROWS_OF_BLOCK);
  const int size = ((num_rows + blocks - 1) / blocks + TILE - 1) / TILE * TILE;
  const Finish done{op, chosen};
  team.each_from_rank(blocks * panels, [&](int item, int next) {
    const int row0 = std::min(num_rows, item / panels * size), row1 = std::min(num_rows, row0 + size);
    const uint8_t* after = next < 0 ? nullptr : weights.panel(next % panels);
    panel_times_rows(weights, item % panels, after, rows, row0, row1, done);
  });
}

}  // namespace whet::graph
