// What test_pool.py asks of a pool. Each returns how often it was wrong.
#include "pool.h"

#include <chrono>
#include <thread>
#include <vector>

using whet::Pool;
using whet::Team;

namespace {

// One region: every item of every `each` done once, and seen by all after its barrier. In every second phase threads begin
// with the item of their rank, and fetch ahead while they wait.
int region_with_items(Pool& pool, int num_phases, int count) {
  std::vector<int> done(static_cast<size_t>(num_phases) * count);
  std::atomic<int> wrong{0};
  pool.run([&](Team& team) {
    if (team.size() != pool.size() || team.rank() < 0 || team.rank() >= team.size()) wrong++;
    for (int phase = 0; phase < num_phases; phase++) {
      int* mine = done.data() + static_cast<size_t>(phase) * count;
      if (phase % 2 == 0) {
        team.each(count, [&](int item) { mine[item]++; });
      } else {
        team.expect(reinterpret_cast<const uint8_t*>(mine), sizeof(int) * count);
        bool is_first = true;
        team.each_from_rank(count, [&](int item, int next) {
          if ((is_first && item != team.rank()) || (next >= 0 && next <= item)) wrong++;
          mine[item]++, is_first = false;
        });
      }
      for (int i = 0; i < count; i++) wrong += mine[i] != 1;
    }
  });
  return wrong;
}

}  // namespace

extern "C" int items_are_done_once(int num_threads, int num_regions, int num_phases, int count) {
  Pool pool(num_threads);
  int wrong = 0;
  for (int i = 0; i < num_regions; i++) wrong += region_with_items(pool, num_phases, count);
  return wrong;
}

// Between two barriers each thread writes its number and then reads all.
extern "C" int barriers_order_writes(int num_threads, int num_rounds) {
  Pool pool(num_threads);
  std::vector<int> slots(num_threads);
  std::atomic<int> wrong{0};
  pool.run([&](Team& team) {
    for (int round = 1; round <= num_rounds; round++) {
      slots[team.rank()] = round;
      team.barrier();
      for (int slot : slots) wrong += slot != round;
      team.barrier();
    }
  });
  return wrong;
}

extern "C" int callers_take_turns(int num_threads, int num_callers, int num_regions) {
  Pool pool(num_threads);
  std::atomic<int> wrong{0}, inside{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < num_callers; c++)
    callers.emplace_back([&] {
      for (int i = 0; i < num_regions; i++)
        pool.run([&](Team& team) {
          inside++;
          team.barrier();
          wrong += inside != pool.size();
          team.barrier();
          inside--;
          team.barrier();
        });
    });
  for (auto& caller : callers) caller.join();
  return wrong;
}

// Threads that went to sleep wake up for a region, and for the end.
extern "C" int sleepers_wake(int num_threads, int num_rounds) {
  int wrong = 0;
  for (int i = 0; i < num_rounds; i++) {
    Pool pool(num_threads);
    wrong += region_with_items(pool, 2, 5);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    wrong += region_with_items(pool, 2, 5);
    if (i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return wrong;
}

#ifdef WITH_MAIN
int main() {
  int wrong = 0;
  for (int threads = 1; threads <= 4; threads++) {
    wrong += items_are_done_once(threads, 50, 7, 20) + barriers_order_writes(threads, 200);
    wrong += callers_take_turns(threads, 3, 50) + sleepers_wake(threads, 3);
  }
  return wrong != 0;
}
#endif
