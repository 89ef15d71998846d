// A gated MLP for callers outside.
#include "kernel.h"

#include "../entry.h"
#include "../linear/store.h"

#include <algorithm>

namespace {
size_t room_for_row(const whet::Weights& gate_up, const whet::Weights& down) {
  return std::max(whet::row_bytes(gate_up.kind, gate_up.k), whet::row_bytes(down.kind, down.k));
}
int gated_stride(const whet::Weights& gate_up) { return gate_up.num_strips / 2 * whet::LANES; }
}  // namespace

// Bytes of `room` that one row takes.
WHET_EXPORT size_t whet_gated_mlp_room(const whet::Weights* gate_up, const whet::Weights* down) {
  return room_for_row(*gate_up, *down) + sizeof(float) * (gated_stride(*gate_up) + 2);
}

// out [num_rows][num_outputs] = (silu(gate) * up) W^T of x [num_rows][k]; gate and up have `intermediate` outputs each,
// their strips in turn.
WHET_EXPORT void whet_gated_mlp(const whet::Weights* gate_up, const whet::Weights* down, const float* x, int32_t num_rows,
                               int32_t k, int32_t intermediate, int32_t num_outputs, uint8_t* room, float* out) {
  using namespace whet;
  const int stride = gated_stride(*gate_up);
  uint8_t* rows = room;
  auto* gated = reinterpret_cast<float*>(rows + room_for_row(*gate_up, *down) * num_rows);
  float* scales = gated + static_cast<size_t>(stride) * num_rows;
  auto* sums = reinterpret_cast<int32_t*>(scales + num_rows);
  const Rows first{rows, row_bytes(gate_up->kind, gate_up->k), scales, sums};
  const Rows second{rows, row_bytes(down->kind, down->k), scales, sums};
  const Work up = work_of(*gate_up, num_rows), back = work_of(*down, num_rows);
  pool_for({up.num_bytes + back.num_bytes, up.num_ops + back.num_ops})->run([&](Team& team) {
    team.each(num_rows, [&](int m) {
      prepare_row(gate_up->kind, x + static_cast<size_t>(k) * m, k, gate_up->k, first, m);
    });
    linear(team, *gate_up, first, num_rows, Gate{gated, stride});
    team.each(num_rows, [&](int m) {
      prepare_row(down->kind, gated + static_cast<size_t>(stride) * m, intermediate, down->k, second, m);
    });
    linear(team, *down, second, num_rows, Store<false>{out, num_outputs});
  });
}
