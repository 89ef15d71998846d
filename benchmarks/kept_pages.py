"""Start a benchmark script again with an allocator that keeps its pages."""

import os
import sys

# Of glibc: pages of large results stay where they are. Else page faults cost more than what is computed.
_KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_OF_ANY_SIZE = {"MALLOC_MMAP_MAX_": "0"}


def keep_pages(of_any_size: bool = False) -> None:
    """Replace the process by the same script with these settings, unless it has them.

    Args:
        of_any_size: Pages of results above 32 MiB stay too.
    """
    settings = {**_KEEP_PAGES, **(_OF_ANY_SIZE if of_any_size else {})}
    if not settings.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})
