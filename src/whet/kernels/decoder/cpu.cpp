// A decoder's step, for callers outside.
#include "kernel.h"

#include "../entry.h"

namespace {
struct Handle {
  whet::Decoder decoder;
  std::vector<whet::Layer> layers;
  whet::Workspace workspace;
};
}  // namespace

// Weights stay the caller's, who keeps them alive until whet_decoder_free; the layers are copied.
WHET_EXPORT void* whet_decoder_new(const whet::Decoder* decoder) {
  auto* handle = new Handle{*decoder, {decoder->layers, decoder->layers + decoder->num_layers}, {}};
  handle->decoder.layers = handle->layers.data();
  return handle;
}

WHET_EXPORT void whet_decoder_free(void* handle) { delete static_cast<Handle*>(handle); }

// Arrays as in StepBatch (whet/models/step.py). Returns 0, or 1 where there is no memory for the work.
WHET_EXPORT int whet_decoder_step(void* handle, const whet::Ragged* batch, const int32_t* token_ids,
                                 const int32_t* logit_rows, int32_t num_logits, float* logits) {
  auto& [decoder, layers, workspace] = *static_cast<Handle*>(handle);
  const auto pool = whet::pool();
  try {
    workspace.fit(decoder, *batch, num_logits, pool->size());
  } catch (const std::bad_alloc&) {
    return 1;
  }
  pool->run([&](whet::Team& team) {
    whet::decode_step(team, decoder, *batch, token_ids, logit_rows, num_logits, workspace, logits);
  });
  return 0;
}
