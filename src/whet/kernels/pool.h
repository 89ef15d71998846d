// One pool of threads for all kernels: a region runs on every thread at once, with barriers inside it.
//
// Threads spin between the phases of a region and for a short while after one, since the next usually comes within
// microseconds; then they sleep. A kernel is a function of (Team&), so that a whole decoder can run in one region.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "simd/lanes.h"

namespace whet {

class Pool;

// What a thread knows of the region that it runs in.
class Team {
 public:
  Team(Pool& pool, int rank) : pool_(pool), rank_(rank) {}
  int rank() const { return rank_; }
  int size() const;
  // Have this thread fetch these bytes into its caches while it waits for others. They take the place of what it has not
  // fetched yet of the last ones.
  void expect(const uint8_t* at, size_t bytes) { expected_ = at, expected_end_ = at + bytes; }
  // Fetch so many lines of them now.
  void fetch_expected(int num_lines) {
    for (; num_lines > 0 && expected_ < expected_end_; num_lines--, expected_ += 64) prefetch(expected_);
  }
  bool is_expecting() const { return expected_ < expected_end_; }
  // Wait for all; returns after every thread's writes before it can be seen.
  void barrier();
  // The items 0..count-1, each given to whichever thread is free: `work(item)`. All threads call it, in the same order
  // of calls; it ends with a barrier.
  template <typename Work>
  void each(int count, Work work) {
    each_with_next(count, [&](int item, int) { work(item); });
  }
  // The same, `work(item, next)`: also the item that this thread will do after it, or -1, to fetch ahead what it needs.
  template <typename Work>
  void each_with_next(int count, Work work) {
    std::atomic<int>& counter = this->counter();
    const auto take = [&] {
      const int item = counter.fetch_add(1, std::memory_order_relaxed);
      return item < count ? item : -1;
    };
    for (int item = take(); item >= 0;) {
      const int next = take();
      work(item, next);
      item = next;
    }
    barrier();
  }
  // The same, but each thread's first item is that of its rank: it can be expected before.
  template <typename Work>
  void each_from_rank(int count, Work work) {
    std::atomic<int>& counter = this->counter();
    const auto take = [&] {
      const int item = counter.fetch_add(1, std::memory_order_relaxed) + size();
      return item < count ? item : -1;
    };
    for (int item = rank_ < count ? rank_ : -1; item >= 0;) {
      const int next = take();
      work(item, next);
      item = next;
    }
    barrier();
  }

 private:
  std::atomic<int>& counter();
  Pool& pool_;
  int rank_;
  int num_counters_ = 0;
  const uint8_t *expected_ = nullptr, *expected_end_ = nullptr;
};

class Pool {
 public:
  explicit Pool(int num_threads) : num_threads_(num_threads) {
    for (int rank = 1; rank < num_threads; rank++) threads_.emplace_back([this, rank] { serve(rank); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  int size() const { return num_threads_; }

  // Run `region` on every thread; returns when all are through. One region at a time: others wait.
  void run(const std::function<void(Team&)>& region) {
    std::lock_guard<std::mutex> one(region_mutex_);
    region_ = &region;
    for (auto& counter : counters_) counter.store(0, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (num_sleeping_ > 0) wake_.notify_all();
    Team team(*this, 0);
    region(team);
    team.barrier();
  }

 private:
  friend class Team;
  static constexpr int kNumCounters = 3;  // one in use, one being left, one cleared
  static constexpr auto kSpin = std::chrono::microseconds(200);

  void serve(int rank) {
    uint64_t seen = 0;
    for (;;) {
      wait_for_region(seen);
      seen++;
      if (stopped_) return;
      Team team(*this, rank);
      (*region_)(team);
      team.barrier();
    }
  }

  void wait_for_region(uint64_t seen) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    for (int i = 1; generation_.load(std::memory_order_acquire) == seen; i++) {
      pause();
      if (i % 64 == 0 && std::chrono::steady_clock::now() > until) {
        std::unique_lock<std::mutex> lock(mutex_);
        num_sleeping_++;
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
        num_sleeping_--;
        return;
      }
    }
  }

  void barrier(Team& team) {
    const uint64_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    // A thread that the system has taken off its core comes back sooner if this one lets go now and then.
    for (int i = 1; phase_.load(std::memory_order_acquire) == phase; i++) {
      team.is_expecting() ? team.fetch_expected(2) : pause();
      if (i % 4096 == 0) std::this_thread::yield();
    }
  }

  const int num_threads_;
  std::vector<std::thread> threads_;
  const std::function<void(Team&)>* region_ = nullptr;
  std::mutex mutex_, region_mutex_;
  std::condition_variable wake_;
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stopped_{false};
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<uint64_t> phase_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> counters_[kNumCounters * 16];
};

inline int Team::size() const { return pool_.size(); }
inline void Team::barrier() { pool_.barrier(*this); }

// Counters take turns: while one is used, the one after it is cleared; a thread can be at most one `each` behind.
inline std::atomic<int>& Team::counter() {
  const int mine = num_counters_++ % Pool::kNumCounters;
  pool_.counters_[(mine + 1) % Pool::kNumCounters * 16].store(0, std::memory_order_relaxed);
  return pool_.counters_[mine * 16];
}

}  // namespace whet
