// Causal convolutions and their gradients, for callers outside.
#include "kernel.h"

#include "../entry.h"
#include "../simd/denormals.h"

namespace {
whet::Work work_of(const whet::causal_conv::Problem& p, int times) {
  const double numbers = static_cast<double>(p.batch) * p.length * p.channels * times;
  return {2.0 * sizeof(float) * numbers, numbers * (2 * p.taps + 16)};
}
}  // namespace

// out [batch][length][channels], float32 or bfloat16.
WHET_EXPORT void whet_causal_conv(const whet::causal_conv::Problem* problem, void* out, int32_t out_is_bf16) {
  using namespace whet;
  const auto& p = *problem;
  each_beside_torch(work_of(p, 1), p.batch * p.num_blocks(), [&](int item) {
    const WithoutDenormals flushed;
    const int b = item / p.num_blocks(), block = item % p.num_blocks();
    if (out_is_bf16)
      causal_conv::forward(p, b, block, static_cast<uint16_t*>(out));
    else
      causal_conv::forward(p, b, block, static_cast<float*>(out));
  });
}

// The number of parts in which the gradients of weight and bias are written; their sums do not depend on threads.
WHET_EXPORT int whet_causal_conv_parts(const whet::causal_conv::Problem* problem) {
  return problem->batch * problem->num_blocks();
}

WHET_EXPORT void whet_causal_conv_backward(const whet::causal_conv::Problem* problem,
                                           const whet::causal_conv::Gradients* gradients) {
  using namespace whet;
  const auto& p = *problem;
  each_beside_torch(work_of(p, 3), p.batch * p.num_blocks(), [&](int item) {
    const WithoutDenormals flushed;
    causal_conv::backward(p, item / p.num_blocks(), item % p.num_blocks(), *gradients);
  });
}
