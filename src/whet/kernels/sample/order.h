// Where a running sum of weights reaches something, over logits in their order: the largest first, of equal ones the
// first. Nothing is sorted.
//
// Eight bounds at once: the sums of all weights at or above each say between which two the place lies. What lies
// there is gathered, and eight closer bounds go through it, until what is left is equal.
#pragma once

#include <algorithm>
#include <cfloat>
#include <vector>

#include "../simd/lanes.h"

namespace whet {
namespace sampling {

constexpr int BOUNDS = 8;
constexpr int TESTED = 2;     // lots of 16 logits tested for one branch, which is hard to foresee
constexpr int SUMMED = 1024;  // logits whose weights are summed in float32, in 16 lanes; these sums in float64

// Up to sixteen lanes; `other` in those beyond `count`.
inline F load_part(const float* x, int count, float other) {
  if (count >= LANES) return load(x);
  float lanes[LANES];
  for (int i = 0; i < LANES; i++) lanes[i] = i < count ? x[i] : other;
  return load(lanes);
}

struct List {
  const float* x;
  int n;
};

// Logits taken out of a list, in the order in which they stood there. Up to whole lanes, -inf comes after them.
struct Gathered {
  std::vector<float> x;
  int n = 0;

  // For as many as `count`; what is read in place must not move, so a list from here never asks for more than there is.
  void reserve(int count) {
    const size_t size = static_cast<size_t>(whole(count)) + (TESTED + 1) * LANES;
    if (x.size() < size) x.resize(size);
  }
  List list() const { return {x.data(), whole(n)}; }
  static int whole(int count) { return (count + LANES - 1) / LANES * LANES; }
};

// The logits of at least `low` and below `high`. `to` may be what is read.
inline void gather(const List& from, float low, float high, Gathered& to) {
  to.reserve(from.n);
  const F least = set1(low), most = set1(high);
  float* x = to.x.data();
  int count = 0;
  for (int begin = 0; begin < from.n; begin += TESTED * LANES) {
    F value[TESTED];
    uint32_t chosen[TESTED], any = 0;
    for (int v = 0; v < TESTED; v++) {
      const int i = begin + v * LANES;
      value[v] = load_part(from.x + i, from.n - i, -INFINITY);
      any |= chosen[v] = at_least(value[v], least) & ~at_least(value[v], most);
    }
    if (any == 0) continue;
    for (int v = 0; v < TESTED; v++) {
      store_chosen(x + count, value[v], chosen[v]);
      count += __builtin_popcount(chosen[v]);
    }
  }
  store(x + count, set1(-INFINITY));
  to.n = count;
}

// Some bounds, the highest first, and the sums of the weights at or above each.
struct Rungs {
  float bound[BOUNDS];
  double sum[BOUNDS];

  template <typename Weigh>
  void add_up(const List& from, const Weigh& weigh) {
    F at[BOUNDS];
    for (int b = 0; b < BOUNDS; b++) at[b] = set1(bound[b]), sum[b] = 0;
    alignas(64) float x[SUMMED], weight[SUMMED];  // in one loop, sums that wait for their weights hold up the next ones
    for (int begin = 0; begin < from.n; begin += SUMMED) {
      int count = 0;
      for (int i = begin; i < std::min(from.n, begin + SUMMED); i += LANES) {
        const F value = load_part(from.x + i, from.n - i, -INFINITY);
        if (at_least(value, at[BOUNDS - 1]) == 0) continue;
        store(x + count, value);
        store(weight + count, weigh(value));
        count += LANES;
      }
      F part[BOUNDS];
      for (F& one : part) one = set1(0.0f);
      for (int i = 0; i < count; i += LANES)
        for (int b = 0; b < BOUNDS; b++) part[b] = add_at_least(part[b], load(weight + i), load(x + i), at[b]);
      for (int b = 0; b < BOUNDS; b++) sum[b] += reduce_add(part[b]);
    }
  }
};

// Evenly from the largest down to the smallest.
inline void spread(float most, float least, Rungs& rungs) {
  const double step = (static_cast<double>(most) - least) / BOUNDS;
  for (int b = 0; b < BOUNDS - 1; b++) rungs.bound[b] = static_cast<float>(most - (b + 1) * step);
  rungs.bound[BOUNDS - 1] = least;
}

inline void find_ends(const Gathered& from, float& most, float& least) {
  F high = set1(-INFINITY), low = set1(INFINITY);
  for (int i = 0; i < from.n; i += LANES) {
    const F x = load(from.x.data() + i);
    high = max(high, x);
    low = min(low, keep(x, 0, from.n - i, INFINITY));
  }
  most = reduce_max(high);
  least = -reduce_max(sub(set1(0.0f), low));
}

// A logit, how many equal ones stand before it, and the sum of weights up to it, itself included.
struct Found {
  float x;
  int num_equal;
  double sum;
};

// The first logit whose sum is `reached`; where rounding leaves all sums below, the last that counts. `rungs`: added up
// over `from`. All weights at or above their last bound are above 0.
template <typename Weigh, typename Reached>
Found reach(List from, Rungs rungs, const Weigh& weigh, Reached reached, Gathered& room) {
  double before = 0;
  float most, least;
  for (;;) {
    int at = 0;
    for (int b = 0; b < BOUNDS; b++) {
      if (rungs.sum[b] > rungs.sum[at]) at = b;
      if (reached(before + rungs.sum[b])) break;
    }
    if (at > 0) before += rungs.sum[at - 1];
    gather(from, rungs.bound[at], at > 0 ? rungs.bound[at - 1] : INFINITY, room);
    from = room.list();
    find_ends(room, most, least);
    if (most <= least) break;
    spread(most, least, rungs);
    rungs.add_up(from, weigh);
  }
  float weight[LANES];
  store(weight, weigh(set1(most)));
  int low = 0, high = room.n - 1;  // all are equal
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (reached(before + (middle + 1) * static_cast<double>(weight[0]))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return {most, low, before + (low + 1) * static_cast<double>(weight[0])};
}

// The k-th logit of some that lie between two finite ones.
inline Found reach_kth(int k, const List& from, float most, float least, Gathered& room) {
  const auto one = [](F) { return set1(1.0f); };
  Rungs rungs;
  spread(most, least, rungs);
  rungs.add_up(from, one);
  return reach(from, rungs, one, [k](double count) { return count >= k; }, room);
}

}  // namespace sampling
}  // namespace whet
