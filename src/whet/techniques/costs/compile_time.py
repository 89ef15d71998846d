"""Say how long this process has compiled, so that compilation is no part of a step's time."""

import sys


def compile_s() -> float:
    """Return the seconds that torch.compile has spent in this process, on forward and backward; 0 where it was unused.

    Code that was found in a cache on disk counts with the time that it took to find and load it.
    """
    if "torch._dynamo" not in sys.modules:
        return 0.0
    from torch._dynamo.utils import calculate_time_spent

    return float(calculate_time_spent().get("total_wall_time", 0.0))
