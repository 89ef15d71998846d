// Activation functions, sixteen numbers at once. A NaN stays one.
#pragma once

#include <type_traits>

#include "../simd/lanes.h"

namespace whet::graph {

enum class Activation : int32_t { none = 0, relu, gelu, gelu_tanh, silu, quick_gelu, tanh, sigmoid };

// x within +-bound; the order of operands keeps a NaN.
inline F within(F x, float bound) { return max(set1(-bound), min(set1(bound), x)); }

// e^x: infinity above 88.7, 0 or next to it below -87.3.
inline F exp_of(F x) { return exp2_of_product(within(x, 200.0f), set1(1.44269504088896341f)); }

// erf(x) = x P(x^2) / Q(x^2), with a relative error of at most 7e-7; exactly +-1 beyond +-4. P and Q are fitted to the
// least relative error up to there, which is 7e-8 without rounding, and P is then 2e-7 larger: so that it reaches 1.
inline F erf_of(F x) {
  x = within(x, 4.0f);
  const F t = mul(x, x);
  F p = set1(1.91109049e-08f), q = set1(0.00102112662f);
  p = fma(p, t, set1(-1.94232004e-06f)), q = fma(q, t, set1(0.0149581929f));
  p = fma(p, t, set1(0.000147287894f)), q = fma(q, t, set1(0.117971322f));
  p = fma(p, t, set1(0.00399063168f)), q = fma(q, t, set1(0.51689243f));
  p = fma(p, t, set1(0.0515250888f)), q = fma(q, t, set1(1.0f));
  p = fma(p, t, set1(0.207126654f));
  p = fma(p, t, set1(1.12837932f));
  return within(div(mul(x, p), q), 1.0f);
}

inline F sigmoid_of(F x) {
  return div(set1(1.0f), add(set1(1.0f), exp_of(within(sub(set1(0.0f), x), 87.0f))));
}

inline F tanh_of(F x) {
  const F one = set1(1.0f), e = exp_of(within(add(x, x), 80.0f));
  return sub(one, div(set1(2.0f), add(one, e)));
}

template <Activation A>
inline F activate(F x) {
  if constexpr (A == Activation::relu) return max(set1(0.0f), x);
  if constexpr (A == Activation::gelu) {
    const F half = mul(x, set1(0.5f));
    return fma(half, erf_of(mul(x, set1(0.70710678118654752f))), half);
  }
  if constexpr (A == Activation::gelu_tanh) {
    const F half = mul(x, set1(0.5f)), cube = mul(mul(x, x), x);
    const F inner = mul(set1(0.79788456080286536f), fma(cube, set1(0.044715f), x));
    return fma(half, tanh_of(inner), half);
  }
  if constexpr (A == Activation::silu) return mul(x, sigmoid_of(x));
  if constexpr (A == Activation::quick_gelu) return mul(x, sigmoid_of(mul(x, set1(1.702f))));
  if constexpr (A == Activation::tanh) return tanh_of(x);
  if constexpr (A == Activation::sigmoid) return sigmoid_of(x);
  return x;
}

// Call `function` with the activation as a constant.
template <typename Function>
void with_activation(Activation activation, Function function) {
  switch (activation) {
    case Activation::none: return function(std::integral_constant<Activation, Activation::none>());
    case Activation::relu: return function(std::integral_constant<Activation, Activation::relu>());
    case Activation::gelu: return function(std::integral_constant<Activation, Activation::gelu>());
    case Activation::gelu_tanh: return function(std::integral_constant<Activation, Activation::gelu_tanh>());
    case Activation::silu: return function(std::integral_constant<Activation, Activation::silu>());
    case Activation::quick_gelu: return function(std::integral_constant<Activation, Activation::quick_gelu>());
    case Activation::tanh: return function(std::integral_constant<Activation, Activation::tanh>());
    case Activation::sigmoid: return function(std::integral_constant<Activation, Activation::sigmoid>());
  }
}

}  // namespace whet::graph
