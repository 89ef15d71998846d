// From a row of logits to a token: temperature, min-p, top-k, top-p and one uniform number (reference.py has the rule),
// without sorting the row.
//
// Top-p and the draw both ask for the first token, in order, at which the sum of weights reaches something: order.h
// finds it. One pass over the row adds up the weights, at eight bounds; the places are then looked for between two of
// them. Top-k begins at a bound that k logits surely reach: the k-th largest of many maxima, each of logits of its own.
#pragma once

#include "order.h"

namespace whet {
namespace sampling {

constexpr int CHUNK = 512;    // logits that share 16 maxima
constexpr int UNUSABLE = -1;  // NaN or +inf among the logits, or nothing above -inf
constexpr double STEP = 0.9;  // from bound to bound of the first pass, in temperatures: most weight lies within a few

struct Rule {
  float temperature;
  int32_t top_k;
  float top_p, min_p, uniform;
};

// Room of one thread.
struct Room {
  std::vector<float> maxima, masked;
  Gathered kept, searched;
};

// A copy of the row with -inf for tokens whose bit is not set. NaN and +inf stay: such a row is unusable.
inline const float* mask_row(const float* x, int n, const uint32_t* mask, Room& room) {
  room.masked.resize(n);
  float* to = room.masked.data();
  for (int begin = 0; begin < n; begin += 32) {
    const uint32_t word = mask[begin / 32];
    const int count = std::min(32, n - begin);
    for (int i = 0; i < count; i++) {
      const float value = x[begin + i];
      to[begin + i] = (word >> i & 1) == 0 && value <= FLT_MAX ? -INFINITY : value;
    }
  }
  return to;
}

// The largest logit; the maxima of every chunk's 16 lanes, and the smallest of them. False where the row is unusable.
inline bool scan(const float* x, int n, Room& room, float& largest, float& smallest) {
  const int chunks = (n + CHUNK - 1) / CHUNK;
  room.maxima.resize(static_cast<size_t>(chunks) * LANES);
  const F least = set1(-FLT_MAX);
  F most = least, fewest = set1(FLT_MAX), odd = set1(0.0f);
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
    fewest = min(fewest, top);
  }
  largest = reduce_max(most);
  smallest = -reduce_max(sub(set1(0.0f), fewest));
  if (!(reduce_add(odd) == 0.0f)) return false;
  return largest > -FLT_MAX || std::any_of(x, x + n, [](float value) { return value >= -FLT_MAX; });
}

// The place of a logit that has so many equal ones before it.
inline int place_of(const float* x, int n, float wanted, int num_equal, const Room& room) {
  const F value = set1(wanted);
  for (int c = 0; c * CHUNK < n; c++) {
    if (reduce_max(load(room.maxima.data() + LANES * c)) < wanted) continue;
    for (int i = c * CHUNK; i < std::min(n, (c + 1) * CHUNK); i += LANES) {
      const F one = load_part(x + i, n - i, -INFINITY);
      uint32_t equal = at_least(one, value) & at_least(value, one);
      if (equal == 0) continue;
      for (; equal != 0; equal &= equal - 1)
        if (num_equal-- == 0) return i + __builtin_ctz(equal);
    }
  }
  return UNUSABLE;  // never: the row has it
}

// The smallest float that is at least `value`.
inline float round_up(double value) {
  const float near = static_cast<float>(value);
  return near < value ? std::nextafter(near, INFINITY) : near;
}

// The first k of what is kept.
inline void keep_first(int k, Room& room) {
  Gathered& kept = room.kept;
  float most, least;
  find_ends(kept, most, least);
  const Found last = reach_kth(k, kept.list(), most, least, room.searched);
  gather(kept.list(), last.x, INFINITY, kept);
  int count = 0, num_equal = 0;
  for (int i = 0; i < kept.n; i++) {  // of those equal to the last one, the first
    kept.x[count] = kept.x[i];
    num_equal += kept.x[i] == last.x;
    count += kept.x[i] > last.x || num_equal <= last.num_equal + 1;
  }
  store(kept.x.data() + count, set1(-INFINITY));
  kept.n = count;
}

// What min-p and top-k leave.
inline void truncate(const float* x, int n, const Rule& rule, float temperature, float largest, float smallest,
                     Room& room) {
  float bound = -FLT_MAX;
  if (rule.min_p > 0.0f) {
    bound = round_up(largest + temperature * std::log(static_cast<double>(std::min(rule.min_p, 1.0f))));
  }
  const List maxima{room.maxima.data(), static_cast<int>(room.maxima.size())};
  const bool top_k = rule.top_k > 0 && rule.top_k < n;
  if (top_k && rule.top_k <= maxima.n) {
    bound = std::max(bound, reach_kth(rule.top_k, maxima, largest, smallest, room.searched).x);
  }
  gather({x, n}, bound, INFINITY, room.kept);
  if (top_k && room.kept.n > rule.top_k) keep_first(rule.top_k, room);
}

// e^((x - largest) / temperature), as a power of 2. What scales is in two parts: its rounding would change all weights
// one way. The polynomial is the best of degree 5 for 2^r, r within +-0.5: off by 8e-8 at most.
struct Softmax {
  F largest, high, low;
  Softmax(float most, float temperature) : largest(set1(most)) {
    const double scale = 1.4426950408889634 / temperature;
    high = set1(static_cast<float>(scale));
    low = set1(static_cast<float>(scale - static_cast<float>(scale)));
  }
  F operator()(F x) const {
    const F below = sub(x, largest), n = round(mul(below, high));
    const F r = fma(below, low, fma(below, high, sub(set1(0.0f), n)));
    F p = set1(1.3276472e-3f);
    p = fma(p, r, set1(9.6755413e-3f));
    p = fma(p, r, set1(5.5507133e-2f));
    p = fma(p, r, set1(2.4022120e-1f));
    p = fma(p, r, set1(6.9314697e-1f));
    p = fma(p, r, set1(1.0000001f));
    return scale_down(p, n);
  }
};

// Where the sum reaches a share of the total. The rest is 1 - share of it, and no weight there is above that of the
// token found: so that one cannot be too light, while most tokens may be.
template <typename Reached>
Found reach_share(double share, double total, const List& from, Rungs rungs, const Softmax& weigh, Reached reached,
                  float largest, float temperature, Room& room) {
  if (share < 0.999) {  // beyond, rounding of the sums may count
    const double lightest = 0.5 * (1 - share) * total / from.n;
    const float bound = static_cast<float>(largest + temperature * std::log(lightest));
    rungs.bound[BOUNDS - 1] = std::min(rungs.bound[BOUNDS - 2], std::max(rungs.bound[BOUNDS - 1], bound));
  }
  return reach(from, rungs, weigh, reached, room.searched);
}

// Top-p and the draw. What lies below the last bound weighs together less than 2^-26 of the sum, and would come after
// the largest `uniform` there is, 1 - 2^-24.
inline Found draw(const List& from, const Rule& rule, float largest, float smallest, float temperature, Room& room) {
  const Softmax weigh(largest, temperature);
  const double span = temperature * (26 * std::log(2.0) + std::log(static_cast<double>(from.n)));
  const double step = std::min(STEP * temperature, 2 * (static_cast<double>(largest) - smallest) / BOUNDS);
  Rungs rungs;
  for (int b = 0; b < BOUNDS - 1; b++) rungs.bound[b] = static_cast<float>(largest - std::min((b + 1) * step, span));
  rungs.bound[BOUNDS - 1] = static_cast<float>(std::max<double>(largest - span, -FLT_MAX));
  rungs.add_up(from, weigh);
  const double whole = rungs.sum[BOUNDS - 1];
  double total = whole;
  if (rule.top_p < 1.0f) {
    const double share = std::max(rule.top_p, 0.0f), wanted = share * whole;
    const auto reached = [=](double sum) { return sum >= wanted; };
    total = reach_share(share, whole, from, rungs, weigh, reached, largest, temperature, room).sum;
  }
  const double wanted = std::min(std::max(rule.uniform, 0.0f), 1 - FLT_EPSILON / 2) * total;
  const auto reached = [=](double sum) { return sum > wanted; };
  return reach_share(wanted / whole, whole, from, rungs, weigh, reached, largest, temperature, room);
}

}  // namespace sampling

inline int sample_row(const float* x, int n, const sampling::Rule& rule, sampling::Room& room) {
  using namespace sampling;
  float largest, smallest;
  if (!scan(x, n, room, largest, smallest)) return UNUSABLE;
  if (!(rule.temperature > 0.0f)) return place_of(x, n, largest, 0, room);
  const float temperature = std::min(std::max(rule.temperature, 1e-30f), 1e30f);
  const bool is_cut = rule.min_p > 0.0f || (rule.top_k > 0 && rule.top_k < n);
  if (is_cut) truncate(x, n, rule, temperature, largest, smallest, room);
  const List from = is_cut ? room.kept.list() : List{x, n};
  const Found drawn = draw(from, rule, largest, smallest, temperature, room);
  return place_of(x, n, drawn.x, drawn.num_equal, room);
}

}  // namespace whet
