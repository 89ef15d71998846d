// A step of a decoder with long-term memory, for callers outside.
#include "kernel.h"

#include "../entry.h"
#include "../simd/denormals.h"

namespace {
struct Remembering {
  whet::memory_model::Model model;
  std::vector<whet::Layer> decoder_layers;
  std::vector<whet::memory_model::Layer> layers;
  std::vector<int32_t> has_memories;
  whet::memory_model::Workspace workspace;

  explicit Remembering(const whet::memory_model::Model& given) : model(given) {
    const int num_layers = given.decoder.num_layers;
    decoder_layers.assign(given.decoder.layers, given.decoder.layers + num_layers);
    layers.assign(given.layers, given.layers + num_layers);
    has_memories.assign(given.has_memories, given.has_memories + num_layers);
    model.decoder.layers = decoder_layers.data(), model.layers = layers.data();
    model.has_memories = has_memories.data();
  }
};
}  // namespace

// Weights and states stay the caller's, who keeps them alive until whet_memory_free; the layers are copied.
WHET_EXPORT void* whet_memory_new(const whet::memory_model::Model* model) { return new Remembering(*model); }

WHET_EXPORT void whet_memory_free(void* handle) { delete static_cast<Remembering*>(handle); }

// Compute what follows from the contents of a row's banks, which have been written from outside.
WHET_EXPORT void whet_memory_derive(void* handle, int32_t row) {
  using namespace whet::memory_model;
  const Model& m = static_cast<Remembering*>(handle)->model;
  for (int i = 0; i < m.decoder.num_layers; i++) {
    if (!m.has_memories[i]) continue;
    float* state = m.layers[i].state + m.sizes.state_size() * row;
    for (int strip = 0; strip < m.sizes.strips(); strip++) derive(m.sizes, m.layers[i], Strip(m.sizes, state, strip));
  }
}

// The segments lie in the order of their tokens. Returns 0, or 1 where there is no memory for the work.
WHET_EXPORT int whet_memory_step(void* handle, const whet::memory_model::Segment* segments, int32_t num_segments,
                                 int32_t num_tokens, const int32_t* token_ids, const int32_t* logit_rows,
                                 int32_t num_logits, float* logits) {
  auto& held = *static_cast<Remembering*>(handle);
  const auto pool = whet::pool();
  try {
    held.workspace.fit(held.model, segments, num_segments, num_tokens, num_logits, pool->size());
  } catch (const std::bad_alloc&) {
    return 1;
  }
  pool->run([&](whet::Team& team) {
    const whet::WithoutDenormals flushed;
    whet::memory_model::step(team, held.model, num_tokens, token_ids, logit_rows, num_logits, held.workspace, logits);
  });
  return 0;
}
