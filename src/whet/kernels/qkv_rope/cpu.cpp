// Heads' norm, rotary positions and the cache's new entries, for callers outside.
#include "kernel.h"

#include "../entry.h"

// qkv is changed in place, and the cache; arrays as write_qkv has them.
WHET_EXPORT void whet_qkv_rope(const whet::Heads* heads, float* qkv, const whet::Rope* rope, const float* q_norm,
                              const float* k_norm, float eps, const whet::Cache* cache, const whet::Ragged* batch) {
  whet::pool().run([&](whet::Team& team) {
    whet::write_qkv(team, *heads, qkv, *rope, q_norm, k_norm, eps, *cache, *batch);
  });
}
