// A step of a hybrid model, for callers outside.
#include "kernel.h"

#include "../entry.h"
#include "../simd/denormals.h"

namespace {
struct Hybrid {
  whet::hybrid_model::Model model;
  std::vector<whet::Layer> decoder_layers;
  std::vector<whet::selective_model::Layer> mamba_layers;
  std::vector<whet::hybrid_model::ConvLayer> convs;
  std::vector<int32_t> mixers;
  whet::hybrid_model::Workspace workspace;

  explicit Hybrid(const whet::hybrid_model::Model& given) : model(given) {
    const int num_layers = given.decoder.num_layers;
    decoder_layers.assign(given.decoder.layers, given.decoder.layers + num_layers);
    mamba_layers.assign(given.mamba.layers, given.mamba.layers + num_layers);
    convs.assign(given.convs, given.convs + num_layers);
    mixers.assign(given.mixers, given.mixers + num_layers);
    model.decoder.layers = decoder_layers.data(), model.mamba.layers = mamba_layers.data();
    model.convs = convs.data(), model.mixers = mixers.data();
  }
};
}  // namespace

// Weights and states stay the caller's, who keeps them alive until whet_hybrid_free; the layers are copied.
WHET_EXPORT void* whet_hybrid_new(const whet::hybrid_model::Model* model) { return new Hybrid(*model); }

WHET_EXPORT void whet_hybrid_free(void* handle) { delete static_cast<Hybrid*>(handle); }

// The batch for attention and the same tokens for states. Returns 0, or 1 where there is no memory for the work.
WHET_EXPORT int whet_hybrid_step(void* handle, const whet::Ragged* batch, const whet::selective_model::Tokens* tokens,
                                 const int32_t* token_ids, const int32_t* logit_rows, int32_t num_logits,
                                 float* logits) {
  auto& hybrid = *static_cast<Hybrid*>(handle);
  const auto pool = whet::pool();
  try {
    hybrid.workspace.fit(hybrid.model, *batch, *tokens, num_logits, pool->size());
  } catch (const std::bad_alloc&) {
    return 1;
  }
  pool->run([&](whet::Team& team) {
    const whet::WithoutDenormals flushed;
    whet::hybrid_model::step(team, hybrid.model, batch->num_tokens, token_ids, logit_rows, num_logits, hybrid.workspace,
                             logits);
  });
  return 0;
}
