// Normalisation for callers outside.
#include "kernel.h"

#include "../entry.h"

// Rows [num_rows][size]. y = norm(x); where there is `added`, sum = x + added and y = norm(sum).
WHET_EXPORT void whet_rms_norm(const float* x, const float* added, const float* weight, int32_t num_rows, int32_t size,
                              float eps, float* sum, float* y) {
  using namespace whet;
  const double num_values = static_cast<double>(num_rows) * size;
  pool_for({(added == nullptr ? 2 : 4) * sizeof(float) * num_values, 4 * num_values})->run([&](Team& team) {
    team.each(num_rows, [&](int row) {
      const size_t at = static_cast<size_t>(size) * row;
      const float* from = x + at;
      if (added != nullptr) {
        std::memcpy(sum + at, from, sizeof(float) * size);
        add_row(sum + at, added + at, size);
        from = sum + at;
      }
      rms_norm_row(from, weight, size, eps, y + at);
    });
  });
}
