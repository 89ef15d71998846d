"""Find the cores that this process may run on."""

import os


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the cores that this process may run on: all, where the system cannot bind it to some."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))
