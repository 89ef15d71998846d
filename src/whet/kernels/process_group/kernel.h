// Processes of one machine that compute a model together, each with a share of its weights. They meet in memory that all
// of them have mapped: the first one calls a step, all compute it, and sums of what each has are the same bits for all.
//
// A process waits for another by spinning, since both are in the same place of the same step and each has cores of its
// own; between steps it sleeps after a while. If a process ends or does not answer, somebody sets `failed`: then nobody
// waits any more, and the step, whose numbers mean nothing, ends with an error.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "../pool.h"

namespace whet {

// What the processes agree on, but for `rank`; Python fills it in.
struct GroupSizes {
  int32_t rank, num_ranks;
  int32_t hidden, vocab;        // floats of a row that is summed, and of a row of logits
  int32_t most_rows;            // that are summed at once
  int32_t most_tokens;          // of a step, and so rows of logits
  int32_t most_ints;            // of a call
  int32_t first_logit, num_logits;  // the columns of logits that this process computes
  float timeout_s;              // after which a process that does not answer has failed
};

class Group {
 public:
  static constexpr int MOST_RANKS = 64;

  Group(const GroupSizes& sizes, uint8_t* memory) : sizes_(sizes), shared_(*reinterpret_cast<Shared*>(memory)) {
    uint8_t* at = memory + sizeof(Shared);
    const auto take = [&at](size_t bytes) {
      uint8_t* taken = at;
      at += whole_lines(bytes);
      return taken;
    };
    ints_ = reinterpret_cast<int32_t*>(take(sizeof(int32_t) * sizes.most_ints));
    slots_ = reinterpret_cast<float*>(take(2 * sizes.num_ranks * slot_bytes(sizes)));
    logits_ = reinterpret_cast<float*>(take(sizeof(float) * sizes.most_tokens * size_t(sizes.vocab)));
  }
  // Of the memory that they share, whose pages take memory once they are used.
  static size_t bytes(const GroupSizes& sizes) {
    return sizeof(Shared) + whole_lines(sizeof(int32_t) * sizes.most_ints) + 2 * sizes.num_ranks * slot_bytes(sizes) +
           whole_lines(sizeof(float) * sizes.most_tokens * size_t(sizes.vocab));
  }
  const GroupSizes& sizes() const { return sizes_; }
  float* logits() const { return logits_; }  // [most_tokens][vocab]
  const int32_t* ints() const { return ints_; }
  // 0, or 1 + the rank of a process that has ended or did not answer in time.
  uint32_t failed() const { return shared_.failed.load(std::memory_order_acquire); }
  // The nanoseconds that this process has waited for others and added what they have.
  uint64_t waited_ns() const { return waited_ns_; }

  // Let all compute what `write(ints)` describes; the first process calls it, and computes it too.
  template <typename Write>
  void call(Write write) {
    write(ints_);
    shared_.calls.fetch_add(1, std::memory_order_seq_cst);
    wake_callees();
  }
  // Wait until the first process calls; false once it has ended the group, or has failed.
  bool wait_for_call() {
    called_++;
    const auto until = std::chrono::steady_clock::now() + CALL_SPIN;
    for (int64_t i = 1; shared_.calls.load(std::memory_order_acquire) != called_; i++) {
      if (has_ended()) return false;
      pause();
      if (i % 64 != 0) continue;
      if (std::chrono::steady_clock::now() > until) sleep_until_call();
      std::this_thread::yield();
    }
    return !has_ended();
  }
  // Say that no call will come any more.
  void end() {
    shared_.ended.store(1, std::memory_order_seq_cst);
    wake_callees();
  }
  void fail(int rank) {
    uint32_t none = 0;
    shared_.failed.compare_exchange_strong(none, 1 + rank, std::memory_order_seq_cst);
    wake_callees();
  }

  // Prepare the sums of a step on so many threads.
  void begin(int num_threads) { counts_.assign(num_threads, Count{count_}); }
  // Where this process puts its part of the next sum, [rows][hidden].
  float* slot(const Team& team) const { return slot_of(counts_[team.rank()].value + 1, sizes_.rank); }
  // x [rows][hidden] gets the parts of all, in the order of ranks. All threads call it, after a barrier.
  void add(Team& team, int num_rows, float* x) {
    const auto began = std::chrono::steady_clock::now();
    const uint64_t count = arrive(team);
    wait_for_all(count);
    in_pieces(team, num_rows, [&](size_t from, size_t to) { add_parts(count, from, to, x); });
    if (team.rank() == 0) note_wait(began);
  }
  // x [rows][hidden] becomes what the first process has there. All threads call it, after a barrier.
  void copy_from_first(Team& team, int num_rows, float* x) {
    const float* first = slot_of(counts_[team.rank()].value + 1, 0);
    const auto copy = [&](const float* from, float* to) {
      in_pieces(team, num_rows, [&](size_t begin, size_t end) { std::copy(from + begin, from + end, to + begin); });
    };
    if (sizes_.rank == 0) copy(x, const_cast<float*>(first));
    const auto began = std::chrono::steady_clock::now();
    wait_for_all(arrive(team));
    if (sizes_.rank != 0) copy(first, x);
    if (team.rank() == 0) note_wait(began);
  }
  // Say that this process has computed its part of the step. The first one waits for all.
  void finish(Team& team) {
    const uint64_t count = arrive(team);
    if (team.rank() != 0) return;
    count_ = count;
    if (sizes_.rank != 0) return;
    const auto began = std::chrono::steady_clock::now();
    wait_for_all(count);
    note_wait(began);
  }

 private:
  static constexpr auto CALL_SPIN = std::chrono::milliseconds(2);
  struct alignas(64) Line {
    std::atomic<uint64_t> arrived;
  };
  struct alignas(64) Count {
    uint64_t value;
  };
  // At the beginning of the memory, which begins as zeros.
  struct Shared {
    alignas(64) std::atomic<uint32_t> calls, num_sleeping, ended, failed;
    Line lines[MOST_RANKS];  // how often each process has arrived
  };

  static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static size_t slot_bytes(const GroupSizes& sizes) {
    return whole_lines(sizeof(float) * sizes.hidden * size_t(sizes.most_rows));
  }
  // Parts of two sums lie side by side: who begins a sum has seen that all have added the one before the last.
  float* slot_of(uint64_t count, int rank) const {
    return slots_ + slot_bytes(sizes_) / sizeof(float) * ((count % 2) * sizes_.num_ranks + rank);
  }
  bool has_ended() const { return shared_.ended.load(std::memory_order_acquire) || failed(); }

  // The floats of some rows, shared out among the team; ends with a barrier.
  template <typename Work>
  void in_pieces(Team& team, int num_rows, Work work) const {
    constexpr size_t PIECE = 1024;
    const size_t size = size_t(sizes_.hidden) * num_rows;
    team.each(static_cast<int>((size + PIECE - 1) / PIECE),
              [&](int item) { work(PIECE * item, std::min(size, PIECE * (item + 1))); });
  }
  // After a barrier of the team, what all of its threads have written is there.
  uint64_t arrive(Team& team) {
    const uint64_t count = ++counts_[team.rank()].value;
    if (team.rank() == 0) shared_.lines[sizes_.rank].arrived.store(count, std::memory_order_release);
    return count;
  }
  void wait_for_all(uint64_t count) {
    for (int rank = 0; rank < sizes_.num_ranks; rank++) wait_for(rank, count);
  }
  void wait_for(int rank, uint64_t count) {
    const std::atomic<uint64_t>& arrived = shared_.lines[rank].arrived;
    std::chrono::steady_clock::time_point began;
    for (int64_t i = 1; arrived.load(std::memory_order_acquire) < count; i++) {
      pause();
      if (i % 256 != 0) continue;
      if (failed()) return;
      std::this_thread::yield();  // for another process that has no core of its own
      const auto now = std::chrono::steady_clock::now();
      if (i == 256) began = now;
      if (std::chrono::duration<float>(now - began).count() > sizes_.timeout_s) fail(rank);
    }
  }
  void add_parts(uint64_t count, size_t from, size_t to, float* x) const {
    const float* first = slot_of(count, 0);
    const size_t stride = slot_bytes(sizes_) / sizeof(float);
    size_t i = from;
    for (; i + LANES <= to; i += LANES) {
      F sum = load(first + i);
      for (int rank = 1; rank < sizes_.num_ranks; rank++) sum = whet::add(sum, load(first + stride * rank + i));
      store(x + i, whet::add(load(x + i), sum));
    }
    for (; i < to; i++) {
      float sum = first[i];
      for (int rank = 1; rank < sizes_.num_ranks; rank++) sum += first[stride * rank + i];
      x[i] += sum;
    }
  }
  void note_wait(std::chrono::steady_clock::time_point began) {
    const auto took = std::chrono::steady_clock::now() - began;
    waited_ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  }
  void sleep_until_call() {
    shared_.num_sleeping.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t calls = shared_.calls.load(std::memory_order_seq_cst);
    if (calls != called_ && !has_ended()) wait_for_change(calls);
    shared_.num_sleeping.fetch_sub(1, std::memory_order_seq_cst);
  }
#ifdef __linux__
  // Sleep for at most a second, unless `calls` has changed.
  void wait_for_change(uint32_t calls) {
    const timespec second{1, 0};
    syscall(SYS_futex, &shared_.calls, FUTEX_WAIT, calls, &second, nullptr, 0);
  }
  void wake_callees() {
    if (shared_.num_sleeping.load(std::memory_order_seq_cst) > 0)
      syscall(SYS_futex, &shared_.calls, FUTEX_WAKE, MOST_RANKS, nullptr, nullptr, 0);
  }
#else
  void wait_for_change(uint32_t) { std::this_thread::sleep_for(std::chrono::microseconds(200)); }
  void wake_callees() {}
#endif

  const GroupSizes sizes_;
  Shared& shared_;
  int32_t* ints_;
  float *slots_, *logits_;
  std::vector<Count> counts_;  // of each thread of this process: how often the process has arrived
  uint64_t count_ = 0;         // the same, between steps
  uint32_t called_ = 0;        // how many calls this process has waited for; begins anew at 2^32, as `calls` does
  uint64_t waited_ns_ = 0;
};

}  // namespace whet
