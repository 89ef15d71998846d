"""Set how glibc keeps memory in measured processes, so that processes of the same code take the same time."""

import os

# glibc gives freed memory back to the system, or does not, by where things happen to lie: each call of a model then
# faults its pages in again, or does not, for as long as the process lives. With these it never gives any back.
STEADY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


def steady() -> dict[str, str]:
    """Return the environment of a process that is compared with others: STEADY, unless the user has set malloc up."""
    is_set = any(name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD") for name in os.environ)
    return {} if is_set else STEADY
