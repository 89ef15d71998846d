// Attention over a cache in blocks, for callers outside.
#include "kernel.h"

#include "../entry.h"

namespace {
// Every sequence's keys and values are read once, and each new token's heads meet all of them.
whet::Work work_of(const whet::Heads& heads, const whet::Ragged& batch, whet::Kv kind, int num_caches) {
  double context = 0, pairs = 0;
  for (int seq = 0; seq < batch.num_seqs; seq++) {
    context += batch.context_len[seq];
    pairs += static_cast<double>(batch.num_new(seq)) * batch.context_len[seq];
  }
  const double num_bytes = 2.0 * heads.num_kv_heads * heads.head_dim * whet::bytes_of(kind) * context;
  return {num_caches * num_bytes, num_caches * 4.0 * heads.num_heads * heads.head_dim * pairs};
}
}  // namespace

// Attention over each of `num_caches` caches in turn, as a decoder's layers would ask for it; out holds the last one's.
// Returns 0, or 1 where there is no memory for the work.
WHET_EXPORT int whet_paged_attention(const whet::Heads* heads, const float* qkv, float softmax_scale, int32_t window,
                                    const whet::Cache* caches, int32_t num_caches, const whet::Ragged* batch,
                                    float* out) {
  static thread_local whet::AttentionScratch scratch;
  whet::AttentionScratch& mine = scratch;  // of the caller, in all threads of the pool
  const auto pool = whet::pool_for(work_of(*heads, *batch, caches[0].kind, num_caches));
  try {
    mine.plan(*heads, caches[0].kind, *batch, pool->size());
  } catch (const std::bad_alloc&) {
    return 1;
  }
  pool->run([&](whet::Team& team) {
    for (int i = 0; i < num_caches; i++)
      whet::paged_attention(team, *heads, qkv, softmax_scale, window, caches[i], *batch, out, mine);
  });
  return 0;
}
