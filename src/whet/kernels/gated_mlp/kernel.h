// The gated half of an MLP: silu(factor * gate) * up, in the epilogue of one matrix that holds both.
//
// The matrix has a strip of gate outputs, then the strip of the same up outputs, and so on: both are in the same tile.
#pragma once

#include "../linear/kernel.h"

namespace whet {

// h[row][j] = silu(factor * gate_j) * up_j of a finished tile; h has 16 * ceil(intermediate / 16) floats a row.
struct Gate {
  float* h;
  int stride;
  float factor = 1.0f;

  void expect(int row, int num_rows, int column) const { expect_writes(h, stride, row, num_rows, column / 2, PANEL / 2); }
  void operator()(const Finished& tile) const {
    for (int m = 0; m < tile.num_rows; m++) {
      const float* y = tile.y + tile.stride * m;
      float* to = h + static_cast<size_t>(stride) * (tile.row + m) + tile.column / 2;
      for (int pair = 0; pair < tile.num_columns / (2 * LANES); pair++)
        store(to + LANES * pair, mul(silu(mul(load(y + 2 * LANES * pair), set1(factor))), load(y + 2 * LANES * pair + LANES)));
    }
  }
};

}  // namespace whet
