// Numbers of float32 or bfloat16 as lanes of float32, the ends of rows that fill no sixteen lanes, and room for lanes.
#pragma once

#include <vector>

#include "lanes.h"

namespace whet {

// Floats whose first one begins a cache line, so that sixteen lanes never lie in two.
class Floats {
 public:
  void resize(size_t count) { lines_.resize((count + LANES - 1) / LANES); }
  void zero() { std::memset(lines_.data(), 0, sizeof(Line) * lines_.size()); }
  float* data() { return lines_.empty() ? nullptr : lines_.data()->numbers; }

 private:
  struct alignas(64) Line {
    float numbers[LANES];
  };
  std::vector<Line> lines_;
};

inline F load_wide(const float* x) { return load(x); }
inline F load_wide(const uint16_t* x) { return load_bf16(x); }
inline float widen(float x) { return x; }
inline float widen(uint16_t x) { return bf16_to_float(x); }
inline void store_narrow(float* x, F value) { store(x, value); }
inline void store_narrow(uint16_t* x, F value) { store_bf16(x, value); }
inline void store_narrow(float* x, float value) { *x = value; }
inline void store_narrow(uint16_t* x, float value) { *x = float_to_bf16(value); }

template <typename T>
inline F load_part(const T* x, int count, float other) {
  if (count == LANES) return load_wide(x);
  T lanes[LANES] = {};
  std::memcpy(lanes, x, sizeof(T) * count);
  return keep(load_wide(lanes), 0, count, other);
}

template <typename T>
inline void store_part(T* x, F value, int count) {
  if (count == LANES) return store_narrow(x, value);
  T lanes[LANES];
  store_narrow(lanes, value);
  std::memcpy(x, lanes, sizeof(T) * count);
}

}  // namespace whet
