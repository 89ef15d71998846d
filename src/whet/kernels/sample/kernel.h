// From a row of logits to a token: temperature, min-p, top-k, top-p and one uniform number (reference.py has the rule),
// without sorting the row.
//
// Tokens stand in order of their logits, the largest first, of equal ones the lower id. Top-p and the draw both ask for
// the first token at which the sum of weights reaches something: a histogram over the logits says in which bucket that
// is, and only that bucket is put in order. Top-k begins at a bound that k logits surely reach: the k-th largest of many
// maxima, each of logits of its own.
#pragma once

#include <algorithm>
#include <cfloat>
#include <functional>
#include <vector>

#include "../simd/lanes.h"

namespace whet {
namespace sampling {

constexpr int CHUNK = 512;  // logits that share 16 maxima
constexpr int BUCKETS = 2048;
constexpr int BELOW = 16;     // more buckets, for what lies below all: sums into one would wait for each other
constexpr int UNUSABLE = -1;  // NaN or +inf among the logits, or nothing above -inf

struct Rule {
  float temperature;
  int32_t top_k;
  float top_p, min_p, uniform;
};

struct Token {
  float x, weight;
  int32_t id;
};
inline bool before(const Token& a, const Token& b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

// Room of one thread.
struct Room {
  std::vector<float> maxima, sorted, x, weight;
  std::vector<int32_t> ids, bucket;
  std::vector<Token> tokens;
  double mass[BUCKETS + BELOW];
};

// Up to sixteen lanes; `other` in those beyond `count`.
inline F load_part(const float* x, int count, float other) {
  if (count >= LANES) return load(x);
  float lanes[LANES];
  for (int i = 0; i < LANES; i++) lanes[i] = i < count ? x[i] : other;
  return load(lanes);
}

// The largest logit, and the maxima of every chunk's 16 lanes. False where the row is unusable.
inline bool scan(const float* x, int n, Room& room, float& largest) {
  const int chunks = (n + CHUNK - 1) / CHUNK;
  room.maxima.resize(static_cast<size_t>(chunks) * LANES);
  const F least = set1(-FLT_MAX);
  F most = least, odd = set1(0.0f);
  for (int c = 0; c < chunks; c++) {
    F top = least;
    const int end = std::min(n, (c + 1) * CHUNK);
    for (int i = c * CHUNK; i < end; i += LANES) {
      const F value = max(least, load_part(x + i, end - i, -FLT_MAX));  // of a NaN and a number, max gives the second
      odd = add(odd, sub(value, value));                                // 0, or NaN for NaN and +inf
      top = max(top, value);
    }
    store(room.maxima.data() + LANES * c, top);
    most = max(most, top);
  }
  largest = reduce_max(most);
  if (!(reduce_add(odd) == 0.0f)) return false;
  return largest > -FLT_MAX || std::any_of(x, x + n, [](float value) { return value >= -FLT_MAX; });
}

inline bool chunk_reaches(const Room& room, int chunk, float bound) {
  return reduce_max(load(room.maxima.data() + LANES * chunk)) >= bound;
}

inline int first_of(const float* x, int n, float value, const Room& room) {
  for (int c = 0;; c++) {
    if (!chunk_reaches(room, c, value)) continue;
    const float* at = std::find(x + c * CHUNK, x + std::min(n, (c + 1) * CHUNK), value);
    if (at != x + std::min(n, (c + 1) * CHUNK)) return static_cast<int>(at - x);
  }
}

// What is drawn from: weight e^((x - largest) / temperature); ids null where they count from 0.
struct Candidates {
  const float *x, *weight;
  const int32_t* ids;
  int n;
  int id(int i) const { return ids == nullptr ? i : ids[i]; }
};

// The logits of at least `bound` and their ids, into the room.
inline int gather(const float* x, int n, float bound, Room& room) {
  room.x.resize(n + LANES);
  room.ids.resize(n + LANES);
  int count = 0;
  for (int c = 0; c * CHUNK < n; c++) {
    if (!chunk_reaches(room, c, bound)) continue;
    for (int i = c * CHUNK; i < std::min(n, (c + 1) * CHUNK); i++) {
      room.x[count] = x[i];
      room.ids[count] = i;
      count += x[i] >= bound;
    }
  }
  return count;
}

// The first k of the gathered ones, in any order.
inline void keep_first(int k, int count, Room& room) {
  room.tokens.resize(count);
  for (int i = 0; i < count; i++) room.tokens[i] = {room.x[i], 0.0f, room.ids[i]};
  std::nth_element(room.tokens.begin(), room.tokens.begin() + k, room.tokens.end(), before);
  for (int i = 0; i < k; i++) room.x[i] = room.tokens[i].x, room.ids[i] = room.tokens[i].id;
}

// At least k logits are this large.
inline float reached_by(int k, Room& room) {
  if (k > static_cast<int>(room.maxima.size())) return -FLT_MAX;
  room.sorted = room.maxima;
  std::nth_element(room.sorted.begin(), room.sorted.begin() + (k - 1), room.sorted.end(), std::greater<float>());
  return room.sorted[k - 1];
}

// The smallest float that is at least `value`.
inline float at_least(double value) {
  const float near = static_cast<float>(value);
  return near < value ? std::nextafter(near, INFINITY) : near;
}

// Weights of n logits; their sum. 1 / temperature is in two parts: its rounding would change all weights one way.
inline double weigh(const float* x, int n, float largest, float temperature, std::vector<float>& weight) {
  weight.resize(n + LANES);
  const double inverse = 1.0 / temperature;
  const F high = set1(static_cast<float>(inverse)), low = set1(static_cast<float>(inverse - static_cast<float>(inverse)));
  double total = 0;
  for (int begin = 0; begin < n; begin += CHUNK) {
    F sum = set1(0.0f);
    for (int i = begin; i < std::min(n, begin + CHUNK); i += LANES) {
      const F below = sub(load_part(x + i, n - i, -INFINITY), set1(largest));
      const F value = exp(fma(below, high, mul(max(below, set1(-1e4f)), low)));  // -inf * low may be +inf
      store(weight.data() + i, value);
      sum = add(sum, value);
    }
    total += reduce_add(sum);
  }
  return total;
}

// Weights summed by logit, from the largest down to `bound`.
class Histogram {
 public:
  Histogram(const Candidates& from, float largest, float bound, Room& room)
      : from_(from), room_(room) {
    const float scale = BUCKETS / std::max(largest - bound, 1e-30f);
    room.bucket.resize(from.n);
    int32_t* bucket = room.bucket.data();
    for (int i = 0; i < from.n; i++) {
      const float place = (largest - from.x[i]) * scale;  // NaN where numbers lie too far apart; it is below
      const int32_t below = BUCKETS + i % BELOW;
      bucket[i] = place < BUCKETS ? static_cast<int32_t>(place) : below;
    }
    std::fill(room.mass, room.mass + BUCKETS + BELOW, 0.0);
    for (int i = 0; i < from.n; i++) room.mass[bucket[i]] += from.weight[i];
  }

  // The first token at which the sum of weights reaches `wanted`, or is above it; `sum` up to there, itself included.
  // Where rounding leaves the whole sum below, the last.
  int reach(double wanted, bool above, double& sum) const {
    const auto reached = [=](double so_far) { return above ? so_far > wanted : so_far >= wanted; };
    int at = 0;
    double before_bucket = 0;
    sum = 0;
    for (int b = 0; b < BUCKETS; b++) {
      if (room_.mass[b] == 0) continue;
      at = b;
      before_bucket = sum;
      sum += room_.mass[b];
      if (reached(sum)) break;
    }
    collect(at);
    sum = before_bucket;
    return select(reached, sum);
  }

 private:
  void collect(int wanted) const {
    room_.tokens.clear();
    const int32_t* bucket = room_.bucket.data();
    for (int i = 0; i < from_.n; i++)
      if (bucket[i] == wanted && from_.weight[i] > 0)
        room_.tokens.push_back({from_.x[i], from_.weight[i], from_.id(i)});
  }

  // Halves what is in question until one is left.
  template <typename Reached>
  int select(Reached reached, double& sum) const {
    auto low = room_.tokens.begin(), high = room_.tokens.end();
    while (high - low > 1) {
      const auto middle = low + (high - low) / 2;
      std::nth_element(low, middle, high, before);
      double half = 0;
      for (auto token = low; token < middle; ++token) half += token->weight;
      if (reached(sum + half)) {
        high = middle;
      } else {
        sum += half;
        low = middle;
      }
    }
    sum += low->weight;
    return low->id;
  }

  const Candidates& from_;
  Room& room_;
};

// Top-p and the draw.
inline int draw(const Candidates& from, const Rule& rule, float largest, float temperature, double total, Room& room) {
  const double uniform = std::min(std::max(rule.uniform, 0.0f), 1 - FLT_EPSILON / 2);
  const bool nucleus = rule.top_p < 1.0f;
  const double share = nucleus ? std::max(rule.top_p, 0.0f) : uniform;
  // Tokens below this have together less than half of what may be left out.
  const double smallest = 0.5 * (1.0 - share) * total / from.n;
  const double bound = largest + static_cast<double>(temperature) * std::log(smallest);
  const Histogram histogram(from, largest, static_cast<float>(std::max<double>(bound, -FLT_MAX)), room);
  double sum = total;
  if (nucleus) histogram.reach(share * total, false, sum);
  return histogram.reach(uniform * sum, true, sum);
}

}  // namespace sampling

inline int sample_row(const float* x, int n, const sampling::Rule& rule, sampling::Room& room) {
  using namespace sampling;
  float largest;
  if (!scan(x, n, room, largest)) return UNUSABLE;
  if (!(rule.temperature > 0.0f)) return first_of(x, n, largest, room);
  const float temperature = std::min(std::max(rule.temperature, 1e-30f), 1e30f);
  const bool top_k = rule.top_k > 0 && rule.top_k < n, min_p = rule.min_p > 0.0f;
  Candidates from{x, nullptr, nullptr, n};
  if (top_k || min_p) {
    float bound = -FLT_MAX;
    if (min_p) bound = at_least(largest + temperature * std::log(static_cast<double>(std::min(rule.min_p, 1.0f))));
    if (top_k) bound = std::max(bound, reached_by(rule.top_k, room));
    from.n = gather(x, n, bound, room);
    if (top_k && from.n > rule.top_k) keep_first(rule.top_k, from.n, room), from.n = rule.top_k;
    from.x = room.x.data();
    from.ids = room.ids.data();
  }
  const double total = weigh(from.x, from.n, largest, temperature, room.weight);
  from.weight = room.weight.data();
  return draw(from, rule, largest, temperature, total, room);
}

}  // namespace whet
