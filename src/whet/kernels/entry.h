// What the functions called from Python share.
#pragma once

#include "pool.h"

// A function that Python may call. All else is hidden, or builds for two instruction sets in one process would share
// the statics of inline functions.
#define WHET_EXPORT extern "C" __attribute__((visibility("default")))

namespace whet {

// The one pool; made when first used, with as many threads as whet_set_threads said.
Pool& pool();

}  // namespace whet
