// Selective scans and their gradients, for callers outside.
#include "backward.h"

#include "../entry.h"
#include "../simd/denormals.h"

namespace {
constexpr int MOST_STRIPS = 16, ITEMS_OF_A_THREAD = 2;

// Operations a state: an exponential of 12 where each has its own, and 5 or 13 besides.
whet::Work work_of(const whet::selective_scan::Problem& p, int besides) {
  const double numbers = static_cast<double>(p.batch) * p.length * p.channels();
  return {4.0 * sizeof(float) * numbers, numbers * p.num_states * (besides + (p.per_head ? 0 : 12))};
}
}  // namespace

WHET_EXPORT void whet_selective_scan(const whet::selective_scan::Problem* problem,
                                     const whet::selective_scan::Results* results) {
  using namespace whet;
  const auto& p = *problem;
  const int num_strips = p.num_strips(), items_of_threads = ITEMS_OF_A_THREAD * num_threads();
  // Strips of an item: as many as leave work for each thread. The results do not depend on it.
  const int size = std::clamp(p.batch * num_strips / items_of_threads, 1, std::min(MOST_STRIPS, num_strips));
  const int num_items = (num_strips + size - 1) / size;
  each_beside_torch(work_of(p, 5), p.batch * num_items, [&](int item) {
    static thread_local selective_scan::Room room;
    const WithoutDenormals flushed;
    const int begin = item % num_items * size;
    selective_scan::forward(p, item / num_items, begin, std::min(begin + size, num_strips), *results, room);
  });
}

// The number of parts in which the gradients of b and c of a group are written.
WHET_EXPORT int whet_selective_scan_bundles(const whet::selective_scan::Problem* problem) {
  return whet::selective_scan::Bundles(*problem).count;
}

WHET_EXPORT void whet_selective_scan_backward(const whet::selective_scan::Problem* problem,
                                              const whet::selective_scan::Gradients* gradients) {
  using namespace whet;
  const auto& p = *problem;
  const selective_scan::Bundles bundles(p);
  const int num_bundles = bundles.count * p.num_groups;
  const int size = std::clamp(p.batch * num_bundles / (ITEMS_OF_A_THREAD * num_threads()), 1, num_bundles);
  const int num_items = (num_bundles + size - 1) / size;
  each_beside_torch(work_of(p, 18), p.batch * num_items, [&](int item) {
    static thread_local selective_scan::BackwardRoom room;
    const WithoutDenormals flushed;
    const int begin = item % num_items * size, end = std::min(begin + size, num_bundles);
    selective_scan::backward(p, item / num_items, begin, end, bundles, *gradients, room);
  });
}
