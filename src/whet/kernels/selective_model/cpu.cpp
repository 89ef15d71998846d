// A step of a selective state-space model, for callers outside.
#include "kernel.h"

#include "../entry.h"
#include "../simd/denormals.h"

namespace {
struct Selective {
  whet::selective_model::Model model;
  std::vector<whet::selective_model::Layer> layers;
  whet::selective_model::Workspace workspace;
  std::vector<std::vector<whet::selective_model::Segment>> cuts;  // of each part
  std::vector<whet::selective_model::Tokens> parts;

  // Raises std::bad_alloc.
  void plan(const whet::selective_model::Tokens& tokens, int num_logits) {
    using namespace whet::selective_model;
    workspace.fit(model, tokens.num_tokens, num_logits);
    const int num_parts = (tokens.num_tokens + PART_TOKENS - 1) / PART_TOKENS;
    if (cuts.size() < static_cast<size_t>(num_parts)) cuts.resize(num_parts);
    parts.clear();
    for (int i = 0; i < num_parts; i++)
      parts.push_back(part_of(tokens, i * PART_TOKENS, std::min((i + 1) * PART_TOKENS, tokens.num_tokens), cuts[i]));
    for (const Tokens& part : parts) workspace.fit_replayed(model, part.num_replayed);
  }
};
}  // namespace

// Weights and states stay the caller's, who keeps them alive until whet_selective_free; the layers are copied.
WHET_EXPORT void* whet_selective_new(const whet::selective_model::Model* model) {
  auto* handle = new Selective{*model, {model->layers, model->layers + model->num_layers}, {}, {}, {}};
  handle->model.layers = handle->layers.data();
  return handle;
}

WHET_EXPORT void whet_selective_free(void* handle) { delete static_cast<Selective*>(handle); }

// Returns 0, or 1 where there is no memory for the work.
WHET_EXPORT int whet_selective_step(void* handle, const whet::selective_model::Tokens* tokens, const int32_t* token_ids,
                                    const int32_t* logit_rows, int32_t num_logits, float* logits) {
  auto& selective = *static_cast<Selective*>(handle);
  const auto pool = whet::pool();
  try {
    selective.plan(*tokens, num_logits);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  pool->run([&](whet::Team& team) {
    const whet::WithoutDenormals flushed;
    whet::selective_model::step(team, selective.model, selective.parts, token_ids, tokens->num_tokens, logit_rows,
                                num_logits, selective.workspace, logits);
  });
  return 0;
}
