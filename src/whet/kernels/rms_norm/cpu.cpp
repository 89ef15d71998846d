// Root-mean-square normalisation for callers outside.
#include "kernel.h"

#include "../entry.h"

#include <vector>

// Rows [num_rows][size]. sum = x + added, where there is `added`; then y = norm(sum), as numbers or as int8 with one
// scale a row: of y and q one is null.
WHET_EXPORT void whet_rms_norm(const float* x, const float* added, const float* weight, int32_t num_rows, int32_t size,
                              float eps, float* sum, float* y, int8_t* q, float* scale) {
  using namespace whet;
  pool().run([&](Team& team) {
    team.each(num_rows, [&](int row) {
      const size_t at = static_cast<size_t>(size) * row;
      const float* from = x + at;
      if (added != nullptr) {
        std::memcpy(sum + at, from, sizeof(float) * size);
        add_row(sum + at, added + at, size);
        from = sum + at;
      }
      if (q == nullptr) return rms_norm_row(from, weight, size, eps, y + at);
      static thread_local std::vector<float> normalised;
      static thread_local std::vector<int8_t> lines;  // quantise_row writes whole ones
      normalised.resize(size);
      lines.resize(row_bytes(Kind::s8, size));
      int32_t ignored;
      rms_norm_row(from, weight, size, eps, normalised.data());
      quantise_row(normalised.data(), size, size, lines.data(), scale + row, &ignored);
      std::memcpy(q + at, lines.data(), size);
    });
  });
}
