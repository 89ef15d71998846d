// A causal convolution of each channel, with bias and SiLU: y[t] = bias + the sum of w[k] x[t - K + 1 + k]. Inputs before
// the first token come from a state. The sum goes over k in order, so that the results are the same, bit for bit, however
// tokens are spread over calls.
#pragma once

#include <algorithm>
#include <vector>

#include "../selective_scan/problem.h"

namespace whet {
namespace causal_conv {

using selective_scan::View;

constexpr int BLOCK_TOKENS = 64;  // of an item

struct Problem {
  int32_t batch, length, channels, taps;
  int32_t is_silu;
  View x;
  const float* weight;   // [taps][channels]
  const float* bias;     // [channels], or null
  const float* initial;  // [batch][taps - 1][channels], the last input last; or null for zeros

  int num_blocks() const { return (length + BLOCK_TOKENS - 1) / BLOCK_TOKENS; }
  // Input t of a sequence, which may lie before the first token.
  F input(int b, int t, int channel, int width) const {
    if (t >= 0) return x.lanes(b, t, channel, width);
    if (initial == nullptr) return set1(0.0f);
    const size_t row = static_cast<size_t>(taps - 1) * b + (t + taps - 1);
    return load_part(initial + row * channels + channel, width, 0.0f);
  }
  // The sum at token t.
  F sum(int b, int t, int channel, int width) const {
    F y = bias == nullptr ? set1(0.0f) : load_part(bias + channel, width, 0.0f);
    for (int k = 0; k < taps; k++) {
      const F w = load_part(weight + static_cast<size_t>(channels) * k + channel, width, 0.0f);
      y = fma(w, input(b, t - taps + 1 + k, channel, width), y);
    }
    return y;
  }
};

struct Gradients {
  View out;
  float* x;        // [batch][length][channels]
  float* initial;  // [batch][taps - 1][channels], or null
  float* weight;   // [parts][taps][channels]
  float* bias;     // [parts][channels], or null
};

template <typename T>
inline void forward(const Problem& p, int b, int block, T* out) {
  const int first = block * BLOCK_TOKENS, last = std::min(first + BLOCK_TOKENS, p.length);
  for (int t = first; t < last; t++) {
    T* to = out + (static_cast<size_t>(p.length) * b + t) * p.channels;
    for (int c = 0; c < p.channels; c += LANES) {
      const int width = std::min(LANES, p.channels - c);
      const F y = p.sum(b, t, c, width);
      store_part(to + c, p.is_silu ? silu(y) : y, width);
    }
  }
}

// A strip's gradients over a block of tokens, of TAPS taps whose inputs, weights and sums stay in registers. The order of
// all sums is that of `backward`. The strip's numbers of two tokens lie far apart: the next strip's are fetched meanwhile.
template <int TAPS>
inline void back_strip(const Problem& p, int b, int first, int last, int c, size_t part, const Gradients& to) {
  const int width = std::min(LANES, p.channels - c), end = std::min(last + TAPS - 1, p.length);
  const bool fetches = c + LANES < p.channels, has_state = first == 0 && to.initial != nullptr;
  const F zero = set1(0.0f), one = set1(1.0f);
  const F bias = p.bias == nullptr ? zero : load_part(p.bias + c, width, 0.0f);
  F w[TAPS], x[TAPS], g[TAPS], of_w[TAPS], of_bias = zero;  // g[k] is the gradient of the sum k tokens ago
  for (int k = 0; k < TAPS; k++) {
    w[k] = load_part(p.weight + static_cast<size_t>(p.channels) * k + c, width, 0.0f);
    g[k] = of_w[k] = zero;
    x[k] = k == 0 ? zero : p.input(b, first - TAPS + k, c, width);
  }
  for (int t = first; t < last + TAPS - 1; t++) {
#pragma GCC unroll 8
    for (int k = TAPS - 1; k > 0; k--) g[k] = g[k - 1];
    g[0] = zero;
    if (t < end) {
#pragma GCC unroll 8
      for (int k = 0; k + 1 < TAPS; k++) x[k] = x[k + 1];
      x[TAPS - 1] = p.x.lanes(b, t, c, width);
      g[0] = to.out.lanes(b, t, c, width);
      if (fetches) prefetch(p.x.place(b, t, c + LANES)), prefetch(to.out.place(b, t, c + LANES));
      if (p.is_silu) {
        F y = bias;
#pragma GCC unroll 8
        for (int k = 0; k < TAPS; k++) y = fma(w[k], x[k], y);
        const F gate = sigmoid(y);
        g[0] = mul(g[0], mul(gate, fma(y, sub(one, gate), one)));
      }
    }
    if (t < last) {
      of_bias = add(of_bias, g[0]);
#pragma GCC unroll 8
      for (int k = 0; k < TAPS; k++) of_w[k] = fma(g[0], x[k], of_w[k]);
    }
    const int input = t - TAPS + 1;  // all sums that it is in are known by now
    if (input < first && !(has_state && input < 0)) continue;
    F of_x = zero;
#pragma GCC unroll 8
    for (int k = 0; k < TAPS; k++) of_x = fma(w[k], g[k], of_x);
    if (input >= 0)
      store_part(to.x + (static_cast<size_t>(p.length) * b + input) * p.channels + c, of_x, width);
    else
      store_part(to.initial + (static_cast<size_t>(TAPS - 1) * b + input + TAPS - 1) * p.channels + c, of_x, width);
  }
  for (int k = 0; k < TAPS; k++) store_part(to.weight + (part * TAPS + k) * p.channels + c, of_w[k], width);
  if (to.bias != nullptr) store_part(to.bias + part * p.channels + c, of_bias, width);
}

// The gradients of a block's inputs (the first block's: of the state too), and its part of those of weight and bias.
inline void backward(const Problem& p, int b, int block, const Gradients& to) {
  const int first = block * BLOCK_TOKENS, last = std::min(first + BLOCK_TOKENS, p.length), taps = p.taps;
  const size_t part = static_cast<size_t>(p.num_blocks()) * b + block;
  if (taps == 4) {  // as all published models have
    for (int c = 0; c < p.channels; c += LANES) back_strip<4>(p, b, first, last, c, part, to);
    return;
  }
  const F zero = set1(0.0f), one = set1(1.0f);
  static thread_local std::vector<float> sums, weights;
  sums.resize(static_cast<size_t>(BLOCK_TOKENS + taps) * LANES), weights.resize(static_cast<size_t>(taps) * LANES);
  for (int c = 0; c < p.channels; c += LANES) {
    const int width = std::min(LANES, p.channels - c);
    const int end = std::min(last + taps - 1, p.length);
    F of_bias = zero;
    std::fill(weights.begin(), weights.end(), 0.0f);
    for (int t = first; t < end; t++) {  // the gradients of sums, up to the last that an input of the block is in
      F g = to.out.lanes(b, t, c, width);
      if (p.is_silu) {
        const F y = p.sum(b, t, c, width), gate = sigmoid(y);
        g = mul(g, mul(gate, fma(y, sub(one, gate), one)));
      }
      store(sums.data() + (t - first) * LANES, g);
      if (t >= last) continue;
      of_bias = add(of_bias, g);
      for (int k = 0; k < taps; k++) {
        float* w = weights.data() + k * LANES;
        store(w, fma(g, p.input(b, t - taps + 1 + k, c, width), load(w)));
      }
    }
    for (int k = 0; k < taps; k++)
      store_part(to.weight + (part * taps + k) * p.channels + c, load(weights.data() + k * LANES), width);
    if (to.bias != nullptr) store_part(to.bias + part * p.channels + c, of_bias, width);
    for (int t = block == 0 && to.initial != nullptr ? 1 - taps : first; t < last; t++) {
      F g = zero;
      for (int k = 0; k < taps; k++) {  // input t is in the sum of token t + taps - 1 - k, times w[k]
        const int at = t + taps - 1 - k;
        if (at < first || at >= end) continue;
        const F w = load_part(p.weight + static_cast<size_t>(p.channels) * k + c, width, 0.0f);
        g = fma(w, load(sums.data() + (at - first) * LANES), g);
      }
      if (t >= 0)
        store_part(to.x + (static_cast<size_t>(p.length) * b + t) * p.channels + c, g, width);
      else
        store_part(to.initial + (static_cast<size_t>(taps - 1) * b + t + taps - 1) * p.channels + c, g, width);
    }
  }
}

}  // namespace causal_conv
}  // namespace whet
