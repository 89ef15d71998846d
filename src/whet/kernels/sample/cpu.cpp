// Sampling for callers outside.
#include "kernel.h"

#include "../entry.h"

// A token for each row of logits [num_rows][vocab], or -1 where a row is unusable. The rest is [num_rows].
WHET_EXPORT void whet_sample(const float* logits, int32_t num_rows, int32_t vocab, const float* temperature,
                            const int32_t* top_k, const float* top_p, const float* min_p, const float* uniform,
                            int64_t* ids) {
  using namespace whet;
  const auto choose = [&](int row) {
    static thread_local sampling::Room room;
    const sampling::Rule rule{temperature[row], top_k[row], top_p[row], min_p[row], uniform[row]};
    ids[row] = sample_row(logits + static_cast<size_t>(vocab) * row, vocab, rule, room);
  };
  if (num_rows == 1) return choose(0);  // there is nothing to share
  const double num_logits = static_cast<double>(num_rows) * vocab;
  pool_for({sizeof(float) * num_logits, num_logits})->run([&](Team& team) { team.each(num_rows, choose); });
}
