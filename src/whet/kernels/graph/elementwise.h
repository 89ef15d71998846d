// A small program that is computed for each number of an output from the numbers of its inputs at the same place.
//
// It runs step by step over blocks of 256 numbers, whose values stay in the first-level cache.
#pragma once


#include "../pool.h"
#include "activations.h"
#include "seen.h"
#include "view.h"

namespace whet::graph {

enum class Function : int32_t {
  add = 0, sub, mul, div, max, min, pow,  // of two numbers
  lt, le, eq, ne,                         // 1 or 0
  neg, abs, exp, log, sqrt, rsqrt, reciprocal, sin, cos, erf, round, floor, relu, gelu, gelu_tanh, silu, quick_gelu,
  tanh, sigmoid,
};

// Values are the inputs, then the results of the steps in order; a function of one number takes `a`.
struct Step {
  Function function;
  int32_t a, b;
};

// Inputs have the shape of the output, and stride 0 where they are broadcast. Without steps, out is the first input.
struct Elementwise {
  int32_t num_inputs, num_steps;
  const View* inputs;
  const Step* steps;
  View out;
};

namespace elementwise_of_block {

constexpr int BLOCK_SIZE = 256, NUMBERS_AT_ONCE = 4096;  // the latter of an item of work

template <typename Lanes>
void by_lanes(const float* a, const float* b, int count, float* to, Lanes lanes) {
  for (int i = 0; i < count; i += LANES) store(to + i, lanes(load(a + i), load(b + i)));
}
template <typename Number>
void by_number(const float* a, const float* b, int count, float* to, Number number) {
  for (int i = 0; i < count; i++) to[i] = number(a[i], b[i]);
}

// Functions that the lanes have.
inline bool compute_lanes(Function function, const float* a, const float* b, int count, float* to) {
  const auto lanes = [&](auto f) { return by_lanes(a, b, count, to, f), true; };
  switch (function) {
    case Function::add: return lanes([](F x, F y) { return add(x, y); });
    case Function::sub: return lanes([](F x, F y) { return sub(x, y); });
    case Function::mul: return lanes([](F x, F y) { return mul(x, y); });
    case Function::div: return lanes([](F x, F y) { return div(x, y); });
    case Function::neg: return lanes([](F x, F) { return mul(x, set1(-1.0f)); });
    case Function::abs: return lanes([](F x, F) { return abs(x); });
    case Function::exp: return lanes([](F x, F) { return exp_of(x); });
    case Function::reciprocal: return lanes([](F x, F) { return div(set1(1.0f), x); });
    case Function::erf: return lanes([](F x, F) { return erf_of(x); });
    case Function::round: return lanes([](F x, F) { return round(x); });
    case Function::relu: return lanes([](F x, F) { return activate<Activation::relu>(x); });
    case Function::gelu: return lanes([](F x, F) { return activate<Activation::gelu>(x); });
    case Function::gelu_tanh: return lanes([](F x, F) { return activate<Activation::gelu_tanh>(x); });
    case Function::silu: return lanes([](F x, F) { return activate<Activation::silu>(x); });
    case Function::quick_gelu: return lanes([](F x, F) { return activate<Activation::quick_gelu>(x); });
    case Function::tanh: return lanes([](F x, F) { return tanh_of(x); });
    case Function::sigmoid: return lanes([](F x, F) { return sigmoid_of(x); });
    default: return false;
  }
}

// The others, one number after the other, as C++ defines them. A NaN among two numbers is their maximum and minimum.
inline void compute(Function function, const float* a, const float* b, int count, float* to) {
  if (compute_lanes(function, a, b, count, to)) return;
  const auto numbers = [&](auto f) { by_number(a, b, count, to, f); };
  switch (function) {
    case Function::max: return numbers([](float x, float y) { return x > y || x != x ? x : y; });
    case Function::min: return numbers([](float x, float y) { return x < y || x != x ? x : y; });
    case Function::pow: return numbers([](float x, float y) { return std::pow(x, y); });
    case Function::lt: return numbers([](float x, float y) { return x < y ? 1.0f : 0.0f; });
    case Function::le: return numbers([](float x, float y) { return x <= y ? 1.0f : 0.0f; });
    case Function::eq: return numbers([](float x, float y) { return x == y ? 1.0f : 0.0f; });
    case Function::ne: return numbers([](float x, float y) { return x != y ? 1.0f : 0.0f; });
    case Function::log: return numbers([](float x, float) { return std::log(x); });
    case Function::sqrt: return numbers([](float x, float) { return std::sqrt(x); });
    case Function::rsqrt: return numbers([](float x, float) { return 1.0f / std::sqrt(x); });
    case Function::sin: return numbers([](float x, float) { return std::sin(x); });
    case Function::cos: return numbers([](float x, float) { return std::cos(x); });
    case Function::floor: return numbers([](float x, float) { return std::floor(x); });
    default: return;
  }
}

// Numbers first..first + count - 1 of a row.
inline void compute_block(const Elementwise& op, int64_t row, int first, int count) {
  static thread_local Floats room;
  static thread_local std::vector<const float*> values;
  const int num_values = op.num_inputs + op.num_steps, lanes = (count + LANES - 1) / LANES * LANES;
  room.resize(static_cast<size_t>(num_values) * BLOCK_SIZE);
  values.resize(num_values);
  for (int i = 0; i < op.num_inputs; i++) {
    const View& view = op.inputs[i];
    const int64_t stride = view.stride[DIMS - 1], at = view.offset(row) + first * stride;
    float* own = room.data() + BLOCK_SIZE * i;
    if (stride == 1 && view.type == Type::f32 && count == lanes) {
      values[i] = view.floats(at);
      continue;
    }
    read_floats(view, at, stride == 0 ? 1 : count, own);
    std::fill(own + (stride == 0 ? 1 : count), own + lanes, stride == 0 ? own[0] : 1.0f);
    values[i] = own;
  }
  for (int s = 0; s < op.num_steps; s++) {
    const Step& step = op.steps[s];
    float* to = room.data() + BLOCK_SIZE * (op.num_inputs + s);
    compute(step.function, values[step.a], values[step.b], lanes, to);
    values[op.num_inputs + s] = to;
  }
  write_floats(op.out, op.out.offset(row) + first * op.out.stride[DIMS - 1], count,
               values[op.num_steps > 0 ? num_values - 1 : 0]);
}

}  // namespace elementwise_of_block

// Share out rows of a view: work(row, first, count) for parts of at most `at_once` numbers.
template <typename Work>
void each_part(Team& team, const View& out, const Chosen& chosen, int at_once, int part_size, Work work) {
  const int width = out.width(), parts = (width + at_once - 1) / at_once;
  const int64_t rows = chosen.count(out.num_rows()), together = std::max(1, at_once / std::max(1, width));
  team.each(static_cast<int>((rows + together - 1) / together) * parts, [&](int item) {
    const int begin = item % parts * at_once, end = std::min(width, begin + at_once);
    const int64_t row = item / parts * together;
    for (int64_t r = row; r < std::min(rows, row + together); r++)
      for (int first = begin; first < end; first += part_size) work(chosen[r], first, std::min(part_size, end - first));
  });
}

inline void elementwise(Team& team, const Elementwise& op, const Chosen& chosen) {
  using namespace elementwise_of_block;
  each_part(team, op.out, chosen, NUMBERS_AT_ONCE, BLOCK_SIZE,
            [&](int64_t row, int first, int count) { compute_block(op, row, first, count); });
}

}  // namespace whet::graph
