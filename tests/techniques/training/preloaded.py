"""Make a library that stands for another malloc, for tests on machines that have none."""

import subprocess
from pathlib import Path

_KNOWN = "int mallctl(void) { return 0; }\n"  # a name by which jemalloc is recognised
_USED = """
#include <stddef.h>
extern void *__libc_malloc(size_t size);
void *malloc(size_t size) { return __libc_malloc(size); }
"""


def made_allocator(path: Path, *, is_used: bool = True) -> Path:
    """Compile a library with one of jemalloc's names, and, if it is to be used, with a malloc of its own."""
    source = path.with_suffix(".c")
    source.write_text(_KNOWN + (_USED if is_used else ""))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return path
