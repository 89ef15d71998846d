// What test_process_group.py asks of a group, in each of its processes.
#include "process_group/kernel.h"

#include <cmath>

using whet::Group;
using whet::GroupSizes;
using whet::Team;

namespace {

// What a process adds in a round: of many magnitudes and both signs, so that another order gives other bits.
float part(int round, int rank, size_t i) {
  uint32_t bits = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(round) * 40503u + rank * 97u + 1u;
  bits ^= bits >> 15, bits *= 2246822519u, bits ^= bits >> 13;
  const float scale = std::ldexp(1.0f, static_cast<int>(bits % 20) - 10);
  return scale * (static_cast<float>(bits >> 8) / 8388608.0f - 1.0f);
}

}  // namespace

extern "C" size_t bytes_of(const GroupSizes* sizes) { return Group::bytes(*sizes); }

// So many sums. Returns how many numbers are not the sum in float64, within rounding, and the digest of all sums' bits.
extern "C" int sums(const GroupSizes* sizes, uint8_t* memory, int num_threads, int num_rounds, uint64_t* digest) {
  Group group(*sizes, memory);
  whet::Pool pool(num_threads);
  const int rows = sizes->most_rows;
  const size_t size = size_t(sizes->hidden) * rows;
  std::vector<float> x(size);
  std::atomic<int> wrong{0};
  *digest = 14695981039346656037u;
  group.begin(num_threads);
  pool.run([&](Team& team) {
    for (int round = 0; round < num_rounds; round++) {
      team.each(static_cast<int>(size), [&](int i) {
        group.slot(team)[i] = part(round, sizes->rank, i);
        x[i] = 0.5f;
      });
      group.add(team, rows, x.data());
      if (team.rank() == 0)
        for (size_t i = 0; i < size; i++) {
          double sum = 0.5, magnitude = 0.5;
          for (int rank = 0; rank < sizes->num_ranks; rank++) {
            sum += part(round, rank, i), magnitude += std::fabs(part(round, rank, i));
          }
          wrong += !(std::fabs(x[i] - sum) <= 1e-6 * magnitude);
          uint32_t bits;
          std::memcpy(&bits, &x[i], 4);
          *digest = (*digest ^ bits) * 1099511628211u;
        }
      team.barrier();
    }
    group.finish(team);
  });
  return wrong + (group.failed() != 0);
}

// Calls of the first process, each with its number, which all add to a row. Returns how often a process read another.
extern "C" int calls(const GroupSizes* sizes, uint8_t* memory, int num_calls, int pause_us) {
  Group group(*sizes, memory);
  whet::Pool pool(1);
  int wrong = 0;
  for (int call = 1; call <= num_calls; call++) {
    if (sizes->rank != 0 && !group.wait_for_call()) return -1;
    group.begin(1);
    if (sizes->rank == 0) {
      if (call % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      group.call([&](int32_t* ints) { ints[0] = call; });
    }
    pool.run([&](Team& team) {
      wrong += group.ints()[0] != call;
      std::vector<float> x(sizes->hidden, sizes->rank == 0 ? static_cast<float>(call) : -1.0f);
      group.copy_from_first(team, 1, x.data());
      wrong += x.front() != static_cast<float>(call) || x.back() != static_cast<float>(call);
      group.finish(team);
    });
  }
  if (sizes->rank == 0) {
    group.end();
    return wrong;
  }
  return group.wait_for_call() ? -1 : wrong;
}

// A sum for which the other processes never come. Returns what `failed` says then.
extern "C" int in_vain(const GroupSizes* sizes, uint8_t* memory) {
  Group group(*sizes, memory);
  whet::Pool pool(2);
  std::vector<float> x(size_t(sizes->hidden) * sizes->most_rows);
  group.begin(2);
  pool.run([&](Team& team) {
    for (int i = 0; i < 10; i++) group.add(team, 1, x.data());
    group.finish(team);
  });
  return static_cast<int>(group.failed());
}

extern "C" void fail(const GroupSizes* sizes, uint8_t* memory, int rank) { Group(*sizes, memory).fail(rank); }
