// The memories of a decoder's layers as the kernels keep them: sizes, weights, and a row of state for each sequence.
//
// Shape names: S slots, in strips of 16; C the width of a slot, padded to 16 lanes; heads of a test-time memory, each c
// wide, padded too. Padding holds zeros.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../linear/weights.h"
#include "../simd/parts.h"

namespace whet {
namespace memory_model {

constexpr float NEVER = -1e30f;    // the score of what has not been seen
constexpr float GATE_SPEED = 10;   // gates' logits are weights times this
constexpr float USAGE_KEPT = 0.9f; // of a slot's usage from one write to the next
constexpr float LEAST_WEIGHT = 1e-12f;

inline int padded(int size) { return (size + LANES - 1) / LANES * LANES; }

struct Sizes {
  int32_t slots, first_slots;  // the most slots of a bank, and those of a new sequence; 0: no bank
  int32_t width;               // of a slot, and of a test-time memory
  int32_t span;                // tokens from one write of the bank to the next
  int32_t heads, depth, chunk; // of a test-time memory; depth 0: none
  float eps, clip;

  int strips() const { return (slots + LANES - 1) / LANES; }
  int lanes() const { return LANES * strips(); }
  int C() const { return padded(width); }
  int head() const { return width / std::max(heads, 1); }
  int c() const { return padded(head()); }
  // What a layer's first matrix gives: q, key, value and channel gate of the bank, then write and read gate; q, key and
  // value of each head of the test-time memory, then step, momentum and decay of each head, and its read gate.
  int key() const { return C(); }
  int value() const { return 2 * C(); }
  int channel() const { return 3 * C(); }
  int gates() const { return 4 * C(); }
  int learns() const { return slots > 0 ? 4 * C() + LANES : 0; }
  int part(int which, int head) const { return learns() + (which * heads + head) * c(); }
  int rates() const { return learns() + 3 * heads * c(); }
  int in_width() const { return depth > 0 ? rates() + padded(3 * heads + 1) : learns(); }
  // What the second matrix takes: what was read of the bank, then of each head.
  int read_of_head(int head) const { return (slots > 0 ? C() : 0) + head * c(); }
  int out_width() const { return (slots > 0 ? C() : 0) + (depth > 0 ? heads * c() : 0); }
  // Of a row of state, in floats: strips of the bank, then the heads.
  int strip_size() const { return 4 * LANES * C() + 10 * LANES; }
  int matrix() const { return head() * c(); }
  int head_size() const { return 3 * depth * matrix(); }
  size_t state_size() const { return size_t(strips()) * strip_size() + size_t(depth > 0 ? heads : 0) * head_size(); }
  // A draft's tokens as they are read again: what the first matrix gave, and how much was read of each slot.
  int draft_size() const { return in_width() + lanes(); }
};

struct Layer {
  Weights into, out;
  const float* norm;
  const float *q_norm, *k_norm;                // [C], of the bank
  const float* queries;                        // [strips][C][lanes], times 1 / sqrt(width)
  const float *centres, *sharpness, *openness; // [lanes]: of slots, the last for write gates
  const float* first;                          // [heads][depth][c][c], first weights of the test-time memory
  const float* tt_norm;                        // [c], or null
  float* state;                                // [rows][state_size], at the settled position
  float* beyond;                               // [rows][state_size], with drafts beyond it; null without drafts
  float* drafts;                               // [rows][num_drafts][draft_size]
};

// Sixteen slots of a sequence.
struct Strip {
  float *contents, *pooled, *values; // [lanes][C]: contents times weight; the span so far; contents
  float* keys;                       // [C][lanes], times 1 / sqrt(width)
  float *weight, *copies, *ages, *usage, *mass, *there, *top, *total, *gate, *bias;

  Strip(const Sizes& z, float* state, int index) {
    float* at = state + size_t(z.strip_size()) * index;
    for (float** part : {&contents, &pooled, &values, &keys}) *part = at, at += LANES * z.C();
    for (float** part : {&weight, &copies, &ages, &usage, &mass, &there, &top, &total, &gate, &bias})
      *part = at, at += LANES;
  }
};

inline float* head_of(const Sizes& z, float* state, int head) {
  return state + size_t(z.strips()) * z.strip_size() + size_t(head) * z.head_size();
}

}  // namespace memory_model
}  // namespace whet
