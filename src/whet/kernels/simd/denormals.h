// While an object of this class lives, its thread takes numbers below the normal ones for 0: the processor is a hundred
// times slower with them, and states that decay without new inputs become so small.
#pragma once

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace whet {

class WithoutDenormals {
 public:
#if defined(__SSE__)
  WithoutDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~WithoutDenormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
  const unsigned before_;
#endif
};

}  // namespace whet
