// What the functions called from Python share.
#pragma once

#include "pool.h"

namespace whet {

// The one pool; made when first used, with as many threads as whet_set_threads said.
Pool& pool();

}  // namespace whet
