// Linear layers over packed weights, for callers outside, and the packing itself.
#include "store.h"

#include "../entry.h"

#include <algorithm>

namespace whet {
namespace {

// Where output n stands among the bytes of a panel's step: its strip, then its lane.
struct Place {
  int panel, strip, lane, strips;
};

Place place_of(const Weights& weights, int n) {
  const int panel = n / PANEL;
  return {panel, n % PANEL / LANES, n % LANES, weights.strips_of(panel)};
}

template <typename T, int PER_STEP>
void pack_plain(const Weights& weights, uint8_t* data, const T* row, int n, int k) {
  const Place at = place_of(weights, n);
  T* panel = reinterpret_cast<T*>(data + weights.strip_bytes() * STRIPS * at.panel);
  for (int i = 0; i < k; i++)
    panel[((i / PER_STEP) * at.strips + at.strip) * LANES * PER_STEP + at.lane * PER_STEP + i % PER_STEP] = row[i];
}

void pack_s4(const Weights& weights, uint8_t* data, const int8_t* row, const uint8_t* ratios, int n, int k) {
  const Place at = place_of(weights, n);
  uint8_t* panel = data + weights.strip_bytes() * STRIPS * at.panel;
  const size_t group_bytes = static_cast<size_t>(at.strips) * (LANES + 4 * 64);
  for (int group = 0; group * GROUP < weights.k; group++) {
    uint8_t* to = panel + group_bytes * group;
    to[at.strip * LANES + at.lane] = group * GROUP < k ? ratios[group] : 1;
    to += at.strips * LANES;
    for (int i = 0; i < GROUP; i++) {
      const int index = group * GROUP + i, value = (index < k ? row[index] : 0) + 8;
      uint8_t& byte = to[((i / 8) * at.strips + at.strip) * 64 + at.lane * 4 + i % 4];
      byte = i % 8 < 4 ? (byte & 0xf0) | value : (byte & 0x0f) | (value << 4);
    }
  }
}

}  // namespace
}  // namespace whet

// Put `num` rows [k] of numbers into the places of the outputs `first`.. of weights->data, which starts as padding.
// values: float, bf16 or int8, by kind; ratios: [num][ceil(k / 32)], of s4.
WHET_EXPORT void whet_pack(const whet::Weights* weights, int32_t first, int32_t num, int32_t k, const void* values,
                          const uint8_t* ratios) {
  using namespace whet;
  auto* data = const_cast<uint8_t*>(weights->data);
  const int groups = (k + GROUP - 1) / GROUP;
  // Sixteen rows an item: neighbours of a strip share lines.
  pool_for({static_cast<double>(num) * k * sizeof(float), 0})->run([&](Team& team) {
    team.each((num + LANES - 1) / LANES, [&](int item) {
      for (int i = item * LANES; i < std::min(num, (item + 1) * LANES); i++) {
        const size_t at = static_cast<size_t>(i) * k;
        switch (weights->kind) {
          case Kind::f32: pack_plain<float, 1>(*weights, data, static_cast<const float*>(values) + at, first + i, k); break;
          case Kind::bf16: pack_plain<uint16_t, 2>(*weights, data, static_cast<const uint16_t*>(values) + at, first + i, k); break;
          case Kind::s8: {
            std::vector<uint8_t> biased(k);
            for (int j = 0; j < k; j++) biased[j] = static_cast<uint8_t>(static_cast<const int8_t*>(values)[at + j] + 128);
            pack_plain<uint8_t, 4>(*weights, data, biased.data(), first + i, k);
            break;
          }
          case Kind::s4:
            pack_s4(*weights, data, static_cast<const int8_t*>(values) + at, ratios + static_cast<size_t>(i) * groups, first + i, k);
        }
      }
    });
  });
}

// out [M][num_outputs] = x [M][k] W^T. `rows` is room for M prepared rows, `scales` and `sums` for M numbers.
WHET_EXPORT void whet_linear(const whet::Weights* weights, const float* x, int32_t num_rows, int32_t k,
                            int32_t num_outputs, uint8_t* rows, float* scales, int32_t* sums, float* out) {
  using namespace whet;
  const Rows prepared{rows, row_bytes(weights->kind, weights->k), scales, sums};
  pool_for(work_of(*weights, num_rows))->run([&](Team& team) {
    team.each(num_rows, [&](int m) {
      prepare_row(weights->kind, x + static_cast<size_t>(k) * m, k, weights->k, prepared, m);
    });
    linear(team, *weights, prepared, num_rows, Store<false>{out, num_outputs});
  });
}
