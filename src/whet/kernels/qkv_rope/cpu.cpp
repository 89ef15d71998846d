// Heads' norm, rotary positions and the cache's new entries, for callers outside.
#include "kernel.h"

#include "../entry.h"

// qkv is changed in place, and the cache; arrays as write_qkv has them.
WHET_EXPORT void whet_qkv_rope(const whet::Heads* heads, float* qkv, const whet::Rope* rope, const float* q_norm,
                              const float* k_norm, float eps, const whet::Cache* cache, const whet::Ragged* batch) {
  const double num_values = static_cast<double>(batch->num_tokens) * heads->width();
  whet::pool_for({2 * sizeof(float) * num_values, 6 * num_values})->run([&](whet::Team& team) {
    whet::write_qkv(team, *heads, qkv, *rope, q_norm, k_norm, eps, *cache, *batch);
  });
}
