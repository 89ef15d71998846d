"""Describe tensors as strided places in buffers, and do the operators that only look at them otherwise."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from whet.core.artefact.native.program import Place
from whet.errors import TargetError
from whet.techniques.rewriting.native_program.symbolic import (
    Size,
    contiguous_strides,
    divides,
    product,
    same,
    same_all,
    written,
)


@dataclass(frozen=True)
class Strided(Place):
    """Describe a tensor in a buffer, with sizes in terms of the free sizes. `written` makes a program's place of it."""

    offset: Size
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]

    @property
    def dim(self) -> int:
        return len(self.shape)

    @property
    def written(self) -> Place:
        return Place(
            self.buffer, written(self.offset), tuple(map(written, self.shape)), tuple(map(written, self.strides))
        )

    @property
    def is_contiguous(self) -> bool:
        strides = contiguous_strides(self.shape)
        return all(same(size, 1) or same(a, b) for size, a, b in zip(self.shape, self.strides, strides, strict=True))

    def permuted(self, order: Sequence[int]) -> "Strided":
        shape = tuple(self.shape[i] for i in order)
        return replace(self, shape=shape, strides=tuple(self.strides[i] for i in order))

    def transposed(self, a: int, b: int) -> "Strided":
        order = list(range(self.dim))
        order[a], order[b] = order[b], order[a]
        return self.permuted(order)

    def unsqueezed(self, dim: int) -> "Strided":
        dim %= self.dim + 1
        shape = (*self.shape[:dim], 1, *self.shape[dim:])
        return replace(self, shape=shape, strides=(*self.strides[:dim], 0, *self.strides[dim:]))

    def selected(self, dim: int, index: Size) -> "Strided":
        rest = [i for i in range(self.dim) if i != dim]
        return replace(self.permuted(rest), offset=self.offset + index * self.strides[dim])

    def sliced(self, dim: int, start: Size, size: Size, step: int = 1) -> "Strided":
        dim %= self.dim
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        strides = (*self.strides[:dim], self.strides[dim] * step, *self.strides[dim + 1 :])
        return replace(self, offset=self.offset + start * self.strides[dim], shape=shape, strides=strides)

    def expanded(self, shape: Sequence[Size]) -> "Strided":
        """Return the tensor broadcast to a shape.

        Raises:
            TargetError: A size is neither 1 nor known to be the wanted one.
        """
        missing = len(shape) - self.dim
        strides: list[Size] = [0] * missing
        for old, new, stride in zip(self.shape, shape[missing:], self.strides, strict=True):
            if not same(old, new) and not same(old, 1):
                raise TargetError(
                    f"whet's native program cannot tell whether the sizes {old} and {new} are equal; leave native out "
                    "of the recipe"
                )
            strides.append(stride if same(old, new) else 0)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def reshaped(self, shape: Sequence[Size]) -> "Strided | None":
        """Return the tensor in another shape, or None where its numbers would have to be copied."""
        if same_all(self.shape, shape):
            return self
        old = [(size, stride) for size, stride in zip(self.shape, self.strides, strict=True) if not same(size, 1)]
        new = [i for i, size in enumerate(shape) if not same(size, 1)]
        strides: list[Size] = [0] * len(shape)
        while old or new:
            taken, made = _next_group([size for size, _ in old], [shape[i] for i in new])
            if not taken or not made or not _is_one_run(old[:taken]):
                return None
            step = old[taken - 1][1]
            for i in reversed(new[:made]):
                strides[i] = step
                step = step * shape[i]
            old, new = old[taken:], new[made:]
        return replace(self, shape=tuple(shape), strides=tuple(strides))


def whole(buffer: int, shape: Sequence[Size]) -> Strided:
    return Strided(buffer, 0, tuple(shape), contiguous_strides(shape))


def _next_group(old: Sequence[Size], new: Sequence[Size]) -> tuple[int, int]:
    """Return how many of the first sizes of two shapes have the same product; (0, 0) where none have."""
    taken = made = 1
    if not old or not new:
        return 0, 0
    while not same(before := product(old[:taken]), after := product(new[:made])):
        if made < len(new) and divides(after, before):
            made += 1
        elif taken < len(old):
            taken += 1
        elif made < len(new):
            made += 1
        else:
            return 0, 0
    return taken, made


def _is_one_run(dims: Sequence[tuple[Size, Size]]) -> bool:
    """Return whether dimensions, as (size, stride), can be walked with the stride of the last."""
    return all(same(outer, size * stride) for (_, outer), (size, stride) in itertools.pairwise(dims))
