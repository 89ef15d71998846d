// What the functions called from Python share.
#pragma once

#include <memory>

#include "linear/weights.h"
#include "pool.h"

// A function that Python may call. All else is hidden, or builds for two instruction sets in one process would share
// the statics of inline functions.
#define WHET_EXPORT extern "C" __attribute__((visibility("default")))

namespace whet {

// The one pool; made when first used, with as many threads as whet_set_threads said. A caller keeps it while it runs
// a region, since another thread may ask for another number of threads meanwhile.
std::shared_ptr<Pool> pool();

// The threads that it has or would have; a call that may be small asks this, and makes no pool.
int num_threads();

// What a call has to do at least: bytes that it reads and writes, and multiplications and additions.
struct Work {
  double num_bytes, num_ops;
};

// A small call takes one core some 30 us at the most (docs/results.md: a core reads 23 GB/s and does 240 operations a
// nanosecond in float32), and threads that sleep take 220 us to wake (docs/log.md).
constexpr double SMALL_BYTES = 512 * 1024, SMALL_OPS = 8e6;

// The pool that a call runs on: a small one keeps to the calling thread. The results are the same, bit for bit, as no
// kernel's depend on the number of threads.
inline std::shared_ptr<Pool> pool_for(Work work) {
  static thread_local const std::shared_ptr<Pool> alone = std::make_shared<Pool>(1);
  return work.num_bytes < SMALL_BYTES && work.num_ops < SMALL_OPS ? alone : pool();
}

// What OpenMP calls to run a function on its threads (GOMP_parallel); null where the process has none.
using OpenMp = void (*)(void (*run)(void*), void* with, unsigned num_threads, unsigned flags);
OpenMp openmp();

// The items 0..count-1, `work(item)`, on torch's own threads. For work between torch's operators: torch's threads spin
// for some milliseconds after each, on the cores that the pool's threads would need. Without OpenMP, it is the pool.
template <typename Function>
void each_beside_torch(Work work, int count, Function function) {
  const bool is_small = work.num_bytes < SMALL_BYTES && work.num_ops < SMALL_OPS;
  if (is_small || openmp() == nullptr) return pool_for(work)->run([&](Team& team) { team.each(count, function); });
  struct Items {
    std::atomic<int> next;
    int count;
    Function& function;
  } items{{0}, count, function};
  const auto run = [](void* with) {
    auto& items = *static_cast<Items*>(with);
    for (int item; (item = items.next.fetch_add(1, std::memory_order_relaxed)) < items.count;) items.function(item);
  };
  openmp()(run, &items, 0, 0);  // as many threads as torch has set
}

// A matrix times so many rows.
inline Work work_of(const Weights& weights, int num_rows) {
  const double num_bytes = static_cast<double>(weights.strip_bytes()) * weights.num_strips;
  const double inputs = weights.k, outputs = static_cast<double>(weights.num_strips) * LANES;
  return {num_bytes + sizeof(float) * num_rows * (inputs + outputs), 2 * num_rows * inputs * outputs};
}

}  // namespace whet
