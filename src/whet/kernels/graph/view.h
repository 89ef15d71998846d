// Numbers in memory that an operation reads or writes, and rows of them.
#pragma once

#include <algorithm>

#include "../simd/parts.h"

namespace whet::graph {

constexpr int DIMS = 6;

enum class Type : int32_t { f32 = 0, bf16 = 1, i32 = 2, i64 = 3, boolean = 4 };

// Sizes and strides (in numbers) stand at the end; dimensions that a view does not have come first, with size 1.
struct View {
  uint8_t* data;  // null where there is no view
  int64_t shape[DIMS], stride[DIMS];
  Type type;

  int width() const { return static_cast<int>(shape[DIMS - 1]); }
  int64_t num_rows() const {
    int64_t rows = 1;
    for (int d = 0; d < DIMS - 1; d++) rows *= shape[d];
    return rows;
  }
  // Where row r begins, in numbers. Dimensions that could be joined have been: mostly there is one.
  int64_t offset(int64_t r) const {
    int64_t at = 0;
    for (int d = DIMS - 2; r > 0; d--) {
      if (r < shape[d]) return at + r * stride[d];
      at += r % shape[d] * stride[d];
      r /= shape[d];
    }
    return at;
  }
  bool is_flat() const { return std::all_of(shape, shape + DIMS - 2, [](int64_t size) { return size == 1; }); }
  float* floats(int64_t at = 0) const { return reinterpret_cast<float*>(data) + at; }
  float* row(int64_t r) const { return floats(offset(r)); }
};

// Read `count` numbers of a view as floats.
inline void read_floats(const View& view, int64_t at, int count, float* to) {
  const int64_t stride = view.stride[DIMS - 1];
  const auto read = [&](const auto* from, auto value) {
    for (int i = 0; i < count; i++) to[i] = value(from[at + stride * i]);
  };
  const auto plain = [](auto x) { return static_cast<float>(x); };
  switch (view.type) {
    case Type::f32:
      if (stride == 1) return static_cast<void>(std::memcpy(to, view.floats(at), sizeof(float) * count));
      return read(view.floats(), plain);
    case Type::bf16: return read(reinterpret_cast<const uint16_t*>(view.data), bf16_to_float);
    case Type::i32: return read(reinterpret_cast<const int32_t*>(view.data), plain);
    case Type::i64: return read(reinterpret_cast<const int64_t*>(view.data), plain);
    case Type::boolean: return read(view.data, [](uint8_t x) { return x ? 1.0f : 0.0f; });
  }
}

// Write floats to a view of floats.
inline void write_floats(const View& view, int64_t at, int count, const float* from) {
  const int64_t stride = view.stride[DIMS - 1];
  float* to = view.floats(at);
  if (stride == 1) return static_cast<void>(std::memcpy(to, from, sizeof(float) * count));
  for (int i = 0; i < count; i++) to[stride * i] = from[i];
}

// The sum over a row: `add_term(sum, x)` for all lanes, in four sums side by side; `rest` fills the last lanes.
template <typename AddTerm>
float sum_of_row(const float* x, int width, float rest, AddTerm add_term) {
  F sum[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int i = 0;
  for (; i + 4 * LANES <= width; i += 4 * LANES)
    for (int j = 0; j < 4; j++) sum[j] = add_term(sum[j], load(x + i + LANES * j));
  for (; i < width; i += LANES) sum[0] = add_term(sum[0], load_part(x + i, std::min(LANES, width - i), rest));
  return reduce_add(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

}  // namespace whet::graph
