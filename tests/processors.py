"""What the processor at hand can do, for tests that need it."""

import pytest

from whet.measure.machine import describe

HAS_BFLOAT16 = describe().computes_bfloat16("cpu")
NEEDS_BFLOAT16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="this processor does not multiply bfloat16")
