// Reads memory as fast as this processor can: plain 64-byte loads, four independent sums, four streams a thread.
//
// torch's sum() does not reach the limit: it is held back by its reduction, not by memory.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

typedef uint64_t Line __attribute__((vector_size(64)));
using Clock = std::chrono::steady_clock;

// Four streams keep more of the hardware's prefetchers busy than one.
uint64_t read_slice(const char* start, size_t lines) {
  const size_t quarter = lines / 4;
  const Line* a = reinterpret_cast<const Line*>(start);
  const Line *b = a + quarter, *c = b + quarter, *d = c + quarter;
  Line sum_a = {}, sum_b = {}, sum_c = {}, sum_d = {};
  for (size_t i = 0; i + 1 < quarter; i += 2) {
    sum_a += a[i], sum_b += b[i], sum_c += c[i], sum_d += d[i];
    sum_a += a[i + 1], sum_b += b[i + 1], sum_c += c[i + 1], sum_d += d[i + 1];
  }
  const Line sum = sum_a + sum_b + sum_c + sum_d;
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

}  // namespace

// Each thread reads its own share of `bytes` from `buffer` (64-byte aligned), `passes` times. Returns the bytes read a
// pass and, in `seconds`, the time from the first thread's start to the last one's end.
extern "C" size_t whet_read(const char* buffer, size_t bytes, int num_threads, int passes, double* seconds) {
  num_threads = std::max(1, std::min<int>(num_threads, bytes / (8 * sizeof(Line))));  // eight lines each, at least
  const size_t lines = bytes / sizeof(Line) / num_threads / 8 * 8;
  std::atomic<int> ready{0};
  std::atomic<uint64_t> sink{0};
  std::vector<Clock::time_point> starts(num_threads), ends(num_threads);
  auto work = [&](int thread) {
    const char* slice = buffer + static_cast<size_t>(thread) * lines * sizeof(Line);
    ready++;
    while (ready < num_threads) std::this_thread::yield();
    starts[thread] = Clock::now();
    uint64_t sum = 0;
    for (int pass = 0; pass < passes; pass++) {
      asm volatile("" : "+r"(slice) : : "memory");  // or the compiler would read once
      sum += read_slice(slice, lines);
    }
    ends[thread] = Clock::now();
    sink += sum;
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread < num_threads; thread++) threads.emplace_back(work, thread);
  work(0);
  for (auto& thread : threads) thread.join();
  const auto first = *std::min_element(starts.begin(), starts.end());
  const auto last = *std::max_element(ends.begin(), ends.end());
  *seconds = std::chrono::duration<double>(last - first).count();
  return lines * sizeof(Line) * num_threads;
}
