// Attention over a cache in blocks, for callers outside.
#include "kernel.h"

#include "../entry.h"

// Attention over each of `num_caches` caches in turn, as a decoder's layers would ask for it; out holds the last one's.
// Returns 0, or 1 where there is no memory for the work.
WHET_EXPORT int whet_paged_attention(const whet::Heads* heads, const float* qkv, float softmax_scale, int32_t window,
                                    const whet::Cache* caches, int32_t num_caches, const whet::Ragged* batch,
                                    float* out) {
  static thread_local whet::AttentionScratch scratch;
  whet::AttentionScratch& mine = scratch;  // of the caller, in all threads of the pool
  whet::Pool& pool = whet::pool();
  try {
    mine.plan(*heads, caches[0].kind, *batch, pool.size());
  } catch (const std::bad_alloc&) {
    return 1;
  }
  pool.run([&](whet::Team& team) {
    for (int i = 0; i < num_caches; i++)
      whet::paged_attention(team, *heads, qkv, softmax_scale, window, caches[i], *batch, out, mine);
  });
  return 0;
}
