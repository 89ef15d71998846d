// All kernels in one library.
#include <pthread.h>

#include <memory>
#include <new>

#include "entry.h"

namespace whet {
namespace {
std::mutex pool_mutex;
std::shared_ptr<Pool> the_pool;
int wanted_threads = 1;
std::atomic<OpenMp> the_openmp{nullptr};

// A child of fork has none of the threads: it makes its own, and leaves the parent's as they are.
void forget_pool() {
  new std::shared_ptr<Pool>(std::move(the_pool));
  new (&pool_mutex) std::mutex();
}
const int at_fork = pthread_atfork(nullptr, nullptr, forget_pool);
}  // namespace

std::shared_ptr<Pool> pool() {
  std::lock_guard<std::mutex> lock(pool_mutex);
  if (!the_pool || the_pool->size() != wanted_threads) {
    the_pool.reset();
    the_pool = std::make_shared<Pool>(wanted_threads);
  }
  return the_pool;
}

int num_threads() {
  std::lock_guard<std::mutex> lock(pool_mutex);
  return wanted_threads;
}

OpenMp openmp() { return the_openmp.load(std::memory_order_relaxed); }

}  // namespace whet

// parallel: the address of GOMP_parallel in this process, or null.
WHET_EXPORT void whet_use_openmp(void* parallel) {
  whet::the_openmp.store(reinterpret_cast<whet::OpenMp>(parallel), std::memory_order_relaxed);
}

WHET_EXPORT void whet_set_threads(int num_threads) {
  std::lock_guard<std::mutex> lock(whet::pool_mutex);
  whet::wanted_threads = num_threads;
}

#include "linear/cpu.cpp"
#include "rms_norm/cpu.cpp"
#include "gated_mlp/cpu.cpp"
#include "sample/cpu.cpp"
#include "qkv_rope/cpu.cpp"
#include "paged_attention/cpu.cpp"
#include "cross_entropy/cpu.cpp"
#include "stochastic_rounding/cpu.cpp"
#include "selective_scan/cpu.cpp"
#include "causal_conv/cpu.cpp"
#include "selective_model/cpu.cpp"
#include "process_group/cpu.cpp"
#include "hybrid_model/cpu.cpp"
#include "memory_model/cpu.cpp"
#include "graph/cpu.cpp"
