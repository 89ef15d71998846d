"""Evaluate sizes that are written in terms of the free sizes of a program's inputs, such as "12 * s0"."""

import ast
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType

Size = int | str

_NODES = (
    *(ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.UnaryOp, ast.USub),
    *(ast.Constant, ast.Name, ast.Load, ast.Call),
)
_FUNCTIONS = {"max": max, "min": min}


class Sizes:
    """Give the numbers behind sizes, for one set of free sizes."""

    def __init__(self, free: Mapping[str, int]) -> None:
        self._free = dict(free)
        self._found: dict[str, int] = {}

    def __call__(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        found = self._found.get(size)
        if found is None:
            found = int(eval(_compiled(size), {**_FUNCTIONS, "__builtins__": {}}, self._free))
            self._found[size] = found
        return found

    def all(self, sizes: tuple[Size, ...]) -> tuple[int, ...]:
        return tuple(map(self, sizes))


def check_size(size: Size, names: Mapping[str, object]) -> None:
    """Raise ValueError unless a size is arithmetic on whole numbers and on the free sizes that are named."""
    if isinstance(size, int):
        return
    for node in ast.walk(ast.parse(size, mode="eval")):
        is_known = isinstance(node, _NODES)
        if isinstance(node, ast.Name):
            is_known = node.id in names or node.id in _FUNCTIONS
        elif isinstance(node, ast.Constant):
            is_known = isinstance(node.value, int)
        elif isinstance(node, ast.Call):
            is_known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        if not is_known:
            raise ValueError(f"{size[:80]!r} is no size")


@lru_cache(maxsize=4096)
def _compiled(size: str) -> CodeType:
    return compile(size, "<size>", "eval")
