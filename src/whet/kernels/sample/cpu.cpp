// Sampling for callers outside.
#include "kernel.h"

#include "../entry.h"

// A token for each row of logits [num_rows][vocab], or -1 where a row is unusable. The rest is [num_rows].
// masks: the tokens that a row may choose, a bit each, in words [.][mask_words]; mask_of_row says which mask is a row's,
// and is -1 for a row that may choose any. Both may be null.
WHET_EXPORT void whet_sample(const float* logits, int32_t num_rows, int32_t vocab, const float* temperature,
                            const int32_t* top_k, const float* top_p, const float* min_p, const float* uniform,
                            const uint32_t* masks, int32_t mask_words, const int32_t* mask_of_row, int64_t* ids) {
  using namespace whet;
  const auto choose = [&](int row) {
    static thread_local sampling::Room room;
    const sampling::Rule rule{temperature[row], top_k[row], top_p[row], min_p[row], uniform[row]};
    const float* x = logits + static_cast<size_t>(vocab) * row;
    if (mask_of_row != nullptr && mask_of_row[row] >= 0) {
      x = sampling::mask_row(x, vocab, masks + static_cast<size_t>(mask_words) * mask_of_row[row], room);
    }
    ids[row] = sample_row(x, vocab, rule, room);
  };
  if (num_rows == 1) return choose(0);  // there is nothing to share
  const double num_logits = static_cast<double>(num_rows) * vocab;
  pool_for({sizeof(float) * num_logits, num_logits})->run([&](Team& team) { team.each(num_rows, choose); });
}
