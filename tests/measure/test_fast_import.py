"""Tests that importing large modules leaves nothing behind at the interpreter's end."""

import subprocess
import sys

import pytest

_PROGRAM = """
import atexit, gc, sys, types

atexit.register(lambda: print(gc.get_freeze_count() > 0))  # runs after import_large's own function
from whet.measure.fast_import import import_large
import_large("json")
if {triton}:
    sys.modules["triton._C.libtriton"] = types.ModuleType("libtriton")
"""


@pytest.mark.parametrize("triton", [True, False])
def test_objects_stay_frozen_at_the_end_unless_triton_is_loaded(triton: bool) -> None:
    program = _PROGRAM.format(triton=triton)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(not triton)
