// Copies between views of one shape, and views filled with one number.
#pragma once

#include "elementwise.h"

namespace whet::graph {

struct Copy {
  View x, out;
  int32_t num_bytes;  // of a number
};

namespace copying {

constexpr int AT_ONCE = 16384;  // numbers of an item of work

template <typename Number>
void copy(Team& team, const Copy& op, const Chosen& chosen) {
  const int64_t from_stride = op.x.stride[DIMS - 1], to_stride = op.out.stride[DIMS - 1];
  each_part(team, op.out, chosen, AT_ONCE, AT_ONCE, [&](int64_t row, int first, int count) {
    const Number* from = reinterpret_cast<const Number*>(op.x.data) + op.x.offset(row) + first * from_stride;
    Number* to = reinterpret_cast<Number*>(op.out.data) + op.out.offset(row) + first * to_stride;
    if (from_stride == 1 && to_stride == 1) return static_cast<void>(std::memcpy(to, from, sizeof(Number) * count));
    for (int i = 0; i < count; i++) to[to_stride * i] = from[from_stride * i];
  });
}

}  // namespace copying

inline void copy(Team& team, const Copy& op, const Chosen& chosen) {
  switch (op.num_bytes) {
    case 1: return copying::copy<uint8_t>(team, op, chosen);
    case 2: return copying::copy<uint16_t>(team, op, chosen);
    case 4: return copying::copy<uint32_t>(team, op, chosen);
    default: return copying::copy<uint64_t>(team, op, chosen);
  }
}

struct Fill {
  View out;
  float value;
};

template <typename Number>
void fill(Team& team, const View& out, const Chosen& chosen, Number value) {
  const int64_t stride = out.stride[DIMS - 1];
  each_part(team, out, chosen, copying::AT_ONCE, copying::AT_ONCE, [&](int64_t row, int first, int count) {
    Number* to = reinterpret_cast<Number*>(out.data) + out.offset(row) + first * stride;
    for (int i = 0; i < count; i++) to[stride * i] = value;
  });
}

inline void fill(Team& team, const Fill& op, const Chosen& chosen) {
  switch (op.out.type) {
    case Type::f32: return fill(team, op.out, chosen, op.value);
    case Type::bf16: return fill(team, op.out, chosen, float_to_bf16(op.value));
    case Type::i32: return fill(team, op.out, chosen, static_cast<int32_t>(op.value));
    case Type::i64: return fill(team, op.out, chosen, static_cast<int64_t>(op.value));
    case Type::boolean: return fill(team, op.out, chosen, static_cast<uint8_t>(op.value != 0.0f));
  }
}

}  // namespace whet::graph
