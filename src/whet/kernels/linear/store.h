// What becomes of a finished tile: times a factor, it is kept, or added to what is there. A matrix may have padding
// beyond its last output.
#pragma once

#include "kernel.h"

namespace whet {

template <bool ADDED>
struct Store {
  float* out;
  int stride;  // floats
  float factor = 1.0f;
  int num_outputs = stride;

  void expect(int row, int num_rows, int column) const {
    expect_writes(out, stride, row, num_rows, column, PANEL);
  }
  void operator()(const Finished& tile) const {
    for (int m = 0; m < tile.num_rows; m++) {
      const float* y = tile.y + tile.stride * m;
      float* to = out + static_cast<size_t>(stride) * (tile.row + m) + tile.column;
      const int width = num_outputs - tile.column < tile.num_columns ? num_outputs - tile.column : tile.num_columns;
      const F by = set1(factor);
      int c = 0;
      for (; c + LANES <= width; c += LANES) {
        const F value = mul(load(y + c), by);
        store(to + c, ADDED ? add(load(to + c), value) : value);
      }
      for (; c < width; c++) to[c] = ADDED ? to[c] + y[c] * factor : y[c] * factor;
    }
  }
};

}  // namespace whet
