// A step of a hybrid model, for callers outside.
#include "kernel.h"

#include "../entry.h"
#include "../simd/denormals.h"

#include <array>

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

namespace {
// A step of the tokens in this process. Returns 0, or 1 where there is no memory for the work, before `begin` is called.
template <typename Begin>
int compute(Hybrid& hybrid, const whet::Ragged& batch, const whet::selective_model::Tokens& tokens,
            const int32_t* token_ids, const int32_t* logit_rows, int32_t num_logits, float* logits, Begin begin) {
  const auto pool = whet::pool();
  try {
    hybrid.workspace.fit(hybrid.model, batch, tokens, num_logits, pool->size());
  } catch (const std::bad_alloc&) {
    return 1;
  }
  begin(pool->size());
  pool->run([&](whet::Team& team) {
    const whet::WithoutDenormals flushed;
    whet::hybrid_model::step(team, hybrid.model, batch.num_tokens, token_ids, logit_rows, num_logits, hybrid.workspace,
                             logits);
  });
  return 0;
}

// How a step lies in the memory of a group: four sizes, then these arrays one after the other.
struct Called {
  whet::Ragged batch;
  const int32_t *token_ids, *logit_rows;
  int32_t num_logits;

  bool fits(const whet::GroupSizes& sizes) const {
    size_t num_ints = 4;
    for (const Array& array : arrays()) num_ints += array.count;
    return num_ints <= size_t(sizes.most_ints) && batch.num_tokens <= sizes.most_tokens;
  }
  void write(int32_t* to) const {
    const int32_t sizes[] = {batch.num_tokens, batch.num_seqs, batch.max_blocks, num_logits};
    to = std::copy(sizes, sizes + 4, to);
    for (const auto& [from, count] : arrays()) to = std::copy(*from, *from + count, to);
  }
  static Called read(const int32_t* from) {
    Called called{};
    called.batch.num_tokens = from[0], called.batch.num_seqs = from[1], called.batch.max_blocks = from[2];
    called.num_logits = from[3], from += 4;
    for (const auto& [array, count] : called.arrays()) *const_cast<const int32_t**>(array) = from, from += count;
    return called;
  }

 private:
  struct Array {
    const int32_t* const* at;
    size_t count;
  };
  std::array<Array, 6> arrays() const {
    const size_t T = batch.num_tokens, S = batch.num_seqs;
    return {{{&token_ids, T}, {&batch.positions, T}, {&batch.query_start, S + 1}, {&batch.context_len, S},
             {&batch.block_tables, S * batch.max_blocks}, {&logit_rows, size_t(num_logits)}}};
  }
};
}  // namespace

// The batch for attention and the same tokens for states. In a group, all its processes compute the step, and the logits
// are the group's. Returns 0; 1 where there is no memory for the work; 2 where a process of the group has failed.
WHET_EXPORT int whet_hybrid_step(void* handle, const whet::Ragged* batch, const whet::selective_model::Tokens* tokens,
                                 const int32_t* token_ids, const int32_t* logit_rows, int32_t num_logits,
                                 float* logits) {
  auto& hybrid = *static_cast<Hybrid*>(handle);
  whet::Group* group = hybrid.model.decoder.group;
  const Called called{*batch, token_ids, logit_rows, num_logits};
  if (group != nullptr && !called.fits(group->sizes())) return 1;
  if (group != nullptr && group->failed()) return 2;
  const auto begin = [&](int num_threads) {
    if (group == nullptr) return;
    group->begin(num_threads);
    group->call([&](int32_t* ints) { called.write(ints); });
  };
  if (compute(hybrid, *batch, *tokens, token_ids, logit_rows, num_logits, logits, begin)) return 1;
  return group != nullptr && group->failed() ? 2 : 0;
}

// Compute the steps that the first process of the group calls. Returns 0 once it has ended the group; 1 where there was
// no memory for a step; 2 where a process of the group has failed.
WHET_EXPORT int whet_hybrid_follow(void* handle) {
  auto& hybrid = *static_cast<Hybrid*>(handle);
  whet::Group& group = *hybrid.model.decoder.group;
  while (group.wait_for_call()) {
    const Called called = Called::read(group.ints());
    const whet::selective_model::Tokens tokens{called.batch.num_tokens, 0, nullptr};
    if (compute(hybrid, called.batch, tokens, called.token_ids, called.logit_rows, called.num_logits, group.logits(),
                [&](int num_threads) { group.begin(num_threads); })) {
      group.fail(group.sizes().rank);
      return 1;
    }
  }
  return group.failed() ? 2 : 0;
}
