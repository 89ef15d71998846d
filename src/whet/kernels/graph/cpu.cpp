// Plans of operations for callers outside.
#include "plan.h"

// A plan of `count` operations; null where there is no memory for it. What they point to must live as long as the plan.
WHET_EXPORT void* whet_graph_new(const whet::graph::Operation* operations, int32_t count) {
  try {
    return new whet::graph::Plan(operations, count);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

WHET_EXPORT void whet_graph_free(void* plan) { delete static_cast<whet::graph::Plan*>(plan); }

// Returns -1, the number of an operation that met an index outside its table, or -2 where there is no memory for the rows
// of the widest linear layer. One call of a plan at a time. `seen`: null where no row is left out.
WHET_EXPORT int whet_graph_run(void* plan, const whet::graph::Seen* seen) {
  try {
    return static_cast<whet::graph::Plan*>(plan)->run(seen);
  } catch (const std::bad_alloc&) {
    return -2;
  }
}
