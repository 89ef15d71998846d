// A weight matrix [N outputs, K inputs] as the kernels read it, and the activations that meet it.
//
// Sixteen outputs side by side are a strip, one lane each; four strips are a panel, read in one sequential stream. At a
// step of k a strip has 64 bytes: 1 float, 2 bf16 or 4 int8 of each of its outputs.
//
//   f32, bf16  the numbers themselves
//   s8         w = scale[n] * q, kept as q + 128: the instruction wants one side unsigned
//   s4         w = scale[n] * r * q with q of 4 bits (-8..7, kept as q + 8) and a whole number r of 1..15 for every 32
//              inputs of an output, so that r * q is an int8 and products add up in int32 over all of K, as for s8
//              (two-level scales as in QServe, Lin et al., 2024, arXiv:2405.04532). Of a strip's 64 bytes, low nibbles
//              are one step of 4 inputs and high nibbles the next. Each group of a panel begins with its r.
//
// Activations for s8 and s4 are int8 with one scale a row. Sums of whole numbers do not depend on their order, and the
// other kinds add along k one by one: a row's result is the same, bit for bit, whatever rows share the call.
#pragma once

#include "../simd/lanes.h"

namespace whet {

enum class Kind : int32_t { f32 = 0, bf16 = 1, s8 = 2, s4 = 3 };

constexpr int STRIPS = 4;              // in a panel; the last one may have fewer
constexpr int PANEL = STRIPS * LANES;  // outputs
constexpr int GROUP = 32;              // inputs that share an r

// Steps along k, each of 64 bytes a strip.
inline int steps(Kind kind, int k) {
  return kind == Kind::f32 ? k : kind == Kind::bf16 ? k / 2 : kind == Kind::s8 ? k / 4 : k / 8;
}

struct Weights {
  Kind kind;
  int32_t num_strips;
  int32_t k;             // padded: to 1, 2, 4 or 32 inputs
  const uint8_t* data;
  const float* scale;    // [16 * num_strips], of s8 and s4
  const float* bias;     // [16 * num_strips] or null

  int num_panels() const { return (num_strips + STRIPS - 1) / STRIPS; }
  int strips_of(int panel) const { return panel + 1 < num_panels() ? STRIPS : num_strips - STRIPS * (num_panels() - 1); }
  size_t strip_bytes() const {
    const size_t k_bytes = static_cast<size_t>(k) * LANES;
    switch (kind) {
      case Kind::f32: return 4 * k_bytes;
      case Kind::bf16: return 2 * k_bytes;
      case Kind::s8: return k_bytes;
      default: return k_bytes / 2 + k_bytes / GROUP;
    }
  }
  const uint8_t* panel(int index) const { return data + strip_bytes() * STRIPS * index; }
};

// M rows of K inputs as the weights' kind wants them.
struct Rows {
  const uint8_t* data;
  size_t stride;         // bytes
  const float* scale;    // [M], of int8 rows
  const int32_t* sum;    // [M], of int8 rows
};

// Bytes that a row of k (padded) inputs takes.
inline size_t row_bytes(Kind kind, int k) {
  const size_t bytes = kind == Kind::f32 ? 4ul * k : kind == Kind::bf16 ? 2ul * k : k;
  return (bytes + 63) / 64 * 64;
}

}  // namespace whet
