"""Compare and write the sizes of an exported graph: whole numbers, or arithmetic on the free sizes of its inputs."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from whet.core.artefact.native.sizes import Size as WrittenSize
from whet.errors import TargetError

Size = Any
"""An int, or a sympy expression of the free sizes."""

_DIVISIONS = ("FloorDiv", "CleanDiv")
_REMAINDERS = ("Mod", "PythonMod")
_EXTREMES = {"Max": "max", "Min": "min"}


def size_of(size: Any) -> Size:
    """Return a size of a tensor that torch.export recorded.

    Raises:
        TargetError: It depends on more than the sizes of inputs.
    """
    if isinstance(size, torch.SymInt) and free_unbacked_symbols(size):
        raise TargetError(
            "whet's native program has no sizes that depend on the numbers of inputs; leave native out of the recipe"
        )
    return _plain(size.node.expr) if isinstance(size, torch.SymInt) else int(size)


def shape_of(tensor: Tensor) -> tuple[Size, ...]:
    return tuple(size_of(size) for size in tensor.shape)


def product(sizes: Iterable[Size]) -> Size:
    return _plain(math.prod(sizes))


def same(a: Size, b: Size) -> bool:
    """Return whether two sizes are equal whatever the free sizes are."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(a == b or sympy.expand(a - b) == 0)


def same_all(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def divides(a: Size, b: Size) -> bool:
    """Return whether b is a whole multiple of a whatever the free sizes are."""
    if isinstance(a, int) and isinstance(b, int):
        return a != 0 and b % a == 0
    return bool(sympy.fraction(sympy.cancel(sympy.sympify(b) / a))[1] == 1)


def contiguous_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = _plain(step * size)
    return tuple(reversed(strides))


def written(size: Size) -> WrittenSize:
    """Return a size as the program holds it.

    Raises:
        TargetError: It is no arithmetic that a program knows.
    """
    size = _plain(size)
    return size if isinstance(size, int) else _text(size)


def _plain(size: Any) -> Size:
    return int(size) if isinstance(size, int | sympy.Integer) else size


def _text(size: Any) -> str:
    name = type(size).__name__
    if isinstance(size, sympy.Integer):
        return str(int(size))
    if isinstance(size, sympy.Symbol):
        return str(size.name)
    if isinstance(size, sympy.Add):
        return f"({' + '.join(map(_text, size.args))})"
    if isinstance(size, sympy.Mul):
        factor, rest = size.as_coeff_Mul()
        if isinstance(factor, sympy.Rational) and factor.q != 1:
            return f"({_text(factor.p * rest)} // {factor.q})"
        return f"({' * '.join(map(_text, size.args))})"
    if isinstance(size, sympy.Pow) and isinstance(size.exp, sympy.Integer) and size.exp > 0:
        return f"({' * '.join([_text(size.base)] * int(size.exp))})"
    if name in _DIVISIONS:
        return f"({_text(size.args[0])} // {_text(size.args[1])})"
    if name in _REMAINDERS:
        return f"({_text(size.args[0])} % {_text(size.args[1])})"
    if name in _EXTREMES:
        return f"{_EXTREMES[name]}({', '.join(map(_text, size.args))})"
    raise TargetError(f"whet's native program cannot compute the size {size}; leave native out of the recipe")
