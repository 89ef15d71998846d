// A bank of slots: tokens read it, and the tokens of a span are pooled for its next write. The equations are those of
// whet/models/memory_bank/bank.py. Tokens are taken one after the other, so that a bank is the same, bit for bit, however
// they are divided into steps.
#pragma once

#include "layout.h"

namespace whet {
namespace memory_model {

// Slots that have not been written hold nothing, and get no share of a read.
inline void clear_strip(const Sizes& z, Strip strip, int index) {
  std::memset(strip.contents, 0, sizeof(float) * z.strip_size());
  for (int j = 0; j < LANES; j++) {
    strip.there[j] = LANES * index + j < z.first_slots;
    strip.top[j] = strip.bias[j] = NEVER;
  }
}

// What tokens read of slots follows from their contents.
inline void derive(const Sizes& z, const Layer& layer, Strip strip) {
  const int C = z.C();
  const float to_scores = 1 / std::sqrt(static_cast<float>(z.width));
  for (int j = 0; j < LANES; j++) {
    float* value = strip.values + C * j;
    const F scale = set1(1 / std::max(strip.weight[j], LEAST_WEIGHT));
    F squares = set1(0.0f);
    for (int i = 0; i < C; i += LANES) {
      const F x = mul(load(strip.contents + C * j + i), scale);
      store(value + i, x);
      squares = fma(x, x, squares);
    }
    const float by = to_scores / std::sqrt(reduce_add(squares) / z.width + z.eps);
    for (int i = 0; i < C; i++) strip.keys[LANES * i + j] = value[i] * by * layer.k_norm[i];
    strip.bias[j] = strip.weight[j] > 0 ? std::log1p(strip.copies[j]) : NEVER;
  }
}

// y [C] = what a token with query q reads, times the factor; shares [lanes]: how much of it was read from each slot. An
// empty choice with score 0 lets it read nothing.
inline void read_bank(const Sizes& z, float* state, const float* q, float factor, float* shares, float* y) {
  const int C = z.C(), num_strips = z.strips();
  F most = set1(0.0f);
  for (int i = 0; i < num_strips; i++) {
    const Strip strip(z, state, i);
    F score = load(strip.bias);
    for (int k = 0; k < z.width; k++) score = fma(set1(q[k]), load(strip.keys + LANES * k), score);
    store(shares + LANES * i, score);
    most = max(most, score);
  }
  const F top = set1(reduce_max(most));
  F sums = set1(0.0f);
  for (int i = 0; i < num_strips; i++) {
    const F share = exp(sub(load(shares + LANES * i), top));
    store(shares + LANES * i, share);
    sums = add(sums, share);
  }
  float nothing[LANES];
  store(nothing, exp(sub(set1(0.0f), top)));
  const F scale = set1(1 / (reduce_add(sums) + nothing[0]));
  for (int i = 0; i < num_strips; i++) store(shares + LANES * i, mul(load(shares + LANES * i), scale));
  for (int k = 0; k < C; k += LANES) {
    F sum = set1(0.0f);
    for (int s = 0; s < z.slots; s++) {
      const float* values = state + size_t(z.strip_size()) * (s / LANES) + 2 * LANES * C;
      sum = fma(set1(shares[s]), load(values + C * (s % LANES) + k), sum);
    }
    store(y + k, mul(sum, set1(factor)));
  }
}

// Take a token at `place` of the span (0 to 1) into what slots pool.
inline void pool_token(const Sizes& z, const Layer& layer, Strip strip, int index, const float* token, float place,
                       const float* shares) {
  const int C = z.C(), first = LANES * index;
  const float *queries = layer.queries + size_t(first) * C, *key = token + z.key(), *value = token + z.value();
  F score = set1(0.0f);
  for (int k = 0; k < z.width; k++) score = fma(set1(key[k]), load(queries + LANES * k), score);
  const F away = sub(set1(place), load(layer.centres + first));
  score = sub(score, mul(mul(away, away), load(layer.sharpness + first)));
  const F top = max(score, load(strip.top));
  float weights[LANES], kept[LANES];
  store(weights, exp(sub(score, top)));
  store(kept, exp(sub(load(strip.top), top)));
  store(strip.top, top);
  store(strip.total, fma(load(strip.total), load(kept), load(weights)));
  store(strip.gate, fma(load(strip.gate), load(kept), mul(load(weights), set1(token[z.gates()]))));
  store(strip.mass, add(load(strip.mass), load(shares + first)));
  for (int j = 0; j < LANES; j++)
    for (int k = 0; k < C; k += LANES) {
      float* pooled = strip.pooled + C * j + k;
      store(pooled, fma(load(pooled), set1(kept[j]), mul(set1(weights[j]), load(value + k))));
    }
}

// Write what slots have pooled of the span, and begin the next one.
inline void write_strip(const Sizes& z, const Layer& layer, Strip strip, int index) {
  const int C = z.C();
  for (int j = 0; j < LANES; j++) {
    const float total = strip.total[j], scale = 1 / std::max(total, LEAST_WEIGHT);
    const float logit = GATE_SPEED * (strip.gate[j] * scale + layer.openness[LANES * index + j]);
    const float gate = strip.there[j] > 0 && total > 0 ? 1 / (1 + std::exp(-logit)) : 0.0f;
    for (int k = 0; k < C; k += LANES) {
      float *contents = strip.contents + C * j + k, *pooled = strip.pooled + C * j + k;
      const F before = load(contents);
      store(contents, fma(set1(gate), sub(mul(load(pooled), set1(scale)), before), before));
      store(pooled, set1(0.0f));
    }
    strip.ages[j] = (1 - gate) * (strip.ages[j] + strip.weight[j]);
    strip.weight[j] += gate * (1 - strip.weight[j]);
    strip.copies[j] -= gate * strip.copies[j];
    strip.usage[j] = USAGE_KEPT * strip.usage[j] + (1 - USAGE_KEPT) * strip.mass[j] / z.span;
    strip.mass[j] = strip.total[j] = strip.gate[j] = 0, strip.top[j] = NEVER;
  }
  derive(z, layer, strip);
}

}  // namespace memory_model
}  // namespace whet
