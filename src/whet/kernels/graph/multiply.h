// Products of activations, batch by batch: out [..., m, n] = a [..., m, k] b [..., k, n], in float32.
#pragma once

#include "../linear/kernel.h"
#include "view.h"

namespace whet::graph {

struct Multiply {
  View a, b, out;
};

namespace product {

// Where a tile of the product goes.
struct Put {
  const View& out;
  int64_t at;  // of the batch
  int column;  // of the panel

  void expect(int, int, int) const {}
  void operator()(const Finished& tile) const {
    const int width = std::min(tile.num_columns, out.width() - column);
    for (int m = 0; m < tile.num_rows; m++) {
      const int64_t row = at + (tile.row + m) * out.stride[DIMS - 2];
      write_floats(out, row + column * out.stride[DIMS - 1], width, tile.y + tile.stride * m);
    }
  }
};

inline int64_t batch_offset(const View& view, int batch, const View& out) {
  int64_t at = 0;
  for (int d = DIMS - 3; d >= 0; d--) at += batch % out.shape[d] * view.stride[d], batch /= static_cast<int>(out.shape[d]);
  return at;
}

}  // namespace product

// An item of work is 64 columns of one batch: they are packed as a matrix is, and all rows are multiplied with them.
inline void multiply(Team& team, const Multiply& op) {
  using namespace product;
  const int m = static_cast<int>(op.a.shape[DIMS - 2]), k = op.a.width(), n = op.out.width();
  const int panels = (n + PANEL - 1) / PANEL;
  int batches = 1;
  for (int d = 0; d < DIMS - 2; d++) batches *= static_cast<int>(op.out.shape[d]);
  team.each(batches * panels, [&](int item) {
    static thread_local Floats packed, gathered;
    const int batch = item / panels, column = item % panels * PANEL, width = std::min(PANEL, n - column);
    const int strips = (width + LANES - 1) / LANES, stride = strips * LANES;
    packed.resize(static_cast<size_t>(k) * stride);
    const int64_t of_b = batch_offset(op.b, batch, op.out) + column * op.b.stride[DIMS - 1];
    for (int i = 0; i < k; i++) {
      float* row = packed.data() + static_cast<size_t>(stride) * i;
      read_floats(op.b, of_b + i * op.b.stride[DIMS - 2], width, row);
      std::fill(row + width, row + stride, 0.0f);
    }
    const int64_t of_a = batch_offset(op.a, batch, op.out);
    const float* a = op.a.floats(of_a);
    size_t a_stride = op.a.stride[DIMS - 2];
    if (op.a.stride[DIMS - 1] != 1) {
      gathered.resize(static_cast<size_t>(m) * k);
      for (int r = 0; r < m; r++)
        read_floats(op.a, of_a + r * op.a.stride[DIMS - 2], k, gathered.data() + static_cast<size_t>(k) * r);
      a = gathered.data(), a_stride = k;
    }
    const Weights weights{Kind::f32, strips, k, reinterpret_cast<const uint8_t*>(packed.data()), nullptr, nullptr};
    const Rows rows{reinterpret_cast<const uint8_t*>(a), sizeof(float) * a_stride, nullptr, nullptr};
    panel_times_rows(weights, 0, nullptr, rows, 0, m, Put{op.out, batch_offset(op.out, batch, op.out), column});
  });
}

}  // namespace whet::graph
