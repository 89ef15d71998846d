"""The table of C functions against the sources, and what it refuses."""

import ctypes
import re
from pathlib import Path

import pytest

from whet import kernels
from whet.kernels.prototypes import FLOAT, POINTER, PROTOTYPES, SIZE, Int32

EXPORT = re.compile(r"WHET_EXPORT\s+([\w:\s*]+?)\s*\b(whet_\w+)\(([^)]*)\)", re.DOTALL)
RESULTS = {"void": None, "int": ctypes.c_int, "size_t": SIZE, "void*": POINTER}


def argument(text: str) -> object:
    """The type of an argument as it is written in C++."""
    if "*" in text:
        return POINTER
    return {"int32_t": Int32, "int": Int32, "float": FLOAT}[text.split()[0]]


def exports() -> dict[str, tuple[object, tuple[object, ...]]]:
    found = {}
    for path in Path(kernels.__file__).parent.rglob("*.cpp"):
        for result, name, arguments in EXPORT.findall(path.read_text()):
            parts = [part.strip() for part in arguments.split(",") if part.strip()]
            found[name] = (RESULTS["".join(result.split())], tuple(map(argument, parts)))
    return found


def test_the_table_is_what_the_sources_export() -> None:
    assert exports() == PROTOTYPES


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40])
def test_a_number_that_does_not_fit_is_an_error(number: int) -> None:
    with pytest.raises(OverflowError, match="does not fit into 32 bits"):
        Int32.from_param(number)


def test_numbers_that_fit_pass() -> None:
    assert Int32.from_param(2**31 - 1).value == 2**31 - 1
    assert Int32.from_param(ctypes.c_int32(-5)).value == -5
