"""Find by calls of a model whether the samples of a batch are independent of each other.

A model whose code mixes the samples of a batch (a normalisation over the batch, one quantisation range for all of it)
would give each client an answer that depends on the others. Such a model runs one request at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.core.workload import is_near
from whet.measure.closeness import distance_between
from whet.server.artefacts.tensor_specs import TensorSpec, output_spec

Run = Callable[..., Sequence[Tensor]]

_FREE_SIZES = (16, 32, 64, 128, 224, 8, 256, 1)  # tried in turn for dimensions that are free beside the first
_PARTS = 4  # of a table, whose rows may differ
_SCALES = (16, 127, 1000, 30_000)  # of whole numbers whose range is not known
_MAX_DISTANCE = 0.02  # of a sample's outputs between batches of two sizes: kernels round differently


@dataclass(frozen=True)
class Batching:
    """Describe how requests may share a call.

    Attributes:
        outputs: What the model returns; empty where no example could be run.
        batch_size: The only number of samples that a call takes; None where any number is taken.
        why_alone: Why a request cannot share a call with others; "" where it can.
        takes_one: Whether a call may have a single sample. It is filled up to two otherwise.
    """

    outputs: tuple[TensorSpec, ...]
    batch_size: int | None = None
    why_alone: str = ""
    takes_one: bool = True

    def allowed(self, most: int) -> tuple[int, ...] | None:
        """Return the numbers of samples that a call may have, up to `most`; None where any will do."""
        if self.batch_size is not None:
            return (self.batch_size,)
        return None if self.takes_one else tuple(range(2, max(most, 2) + 1))


def probe(
    run: Run,
    inputs: Sequence[TensorSpec],
    names: Sequence[str],
    largest: Mapping[int, int] | None = None,
    *,
    tries_indices: bool = True,
) -> Batching:
    """Call a model with made-up inputs and return how requests may share its calls. `run` has flat tensors in and out.

    Args:
        names: Of its outputs, in order.
        largest: The largest index that inputs may hold, by place, where it is known.
        tries_indices: Whether an index that is too large is safe to try where none is known.
    """
    run = torch.no_grad()(run)
    made = _MadeUp(inputs, largest or {}, tries_indices=tries_indices)
    firsts = {spec.shape[0] if spec.shape else 0 for spec in inputs}
    size = next(iter(firsts))
    for free in _FREE_SIZES:
        first = made.batch(2 if size is None else size, free)
        try:
            outputs = run(*first)
            why = _why_alone(run, made, first, outputs, size) if len(firsts) == 1 else _NO_COMMON_DIMENSION
        except Exception:  # noqa: BLE001 - the model may raise anything for sizes that it is not made for
            continue
        specs = _output_specs(run, made, first, outputs, names)
        takes_one = size is not None or _tried(run, [x[:1] for x in first]) is not None
        return Batching(specs, size, why, takes_one=takes_one)
    return Batching((), size, "no made-up input could be run")


_NO_COMMON_DIMENSION = "its inputs have no batch dimension in common"


class _MadeUp:
    """Makes inputs up: normal noise, indices from all of a table, or zeros and ones where nothing is known."""

    def __init__(self, inputs: Sequence[TensorSpec], largest: Mapping[int, int], *, tries_indices: bool) -> None:
        self.inputs = inputs
        self._largest = largest
        is_unknown = [not spec.dtype.is_floating_point and place not in largest for place, spec in enumerate(inputs)]
        self._scales = _SCALES if tries_indices and any(is_unknown) else ()

    def batch(self, rows: int, free: int) -> list[Tensor]:
        """Return inputs with `rows` samples, and `free` in every other free dimension."""
        found = []
        for place, spec in enumerate(self.inputs):
            shape = [free if size is None else size for size in spec.shape]
            if spec.shape and spec.shape[0] is None:
                shape[0] = rows
            found.append(self._values(place, shape))
        return found

    def company(self, first: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yield samples and others to share their batch with: like ones, far larger ones, ids from all of a table.

        Rows of a table are often alike near each other, as rare words' are. So ids come from each quarter in turn.
        """
        own = [x[:1] for x in first]
        yield own, [x[1:] for x in first]
        is_indexed = any(top > 1 for top in self._largest.values())
        parts = range(_PARTS if is_indexed else 1)
        common = [self._part(place, x[:1], 0) for place, x in enumerate(first)]
        for part in parts:
            yield common, [self._part(place, x[1:], part, other=1) for place, x in enumerate(first)]
        if is_indexed:
            rare = [self._part(place, x[:1], _PARTS - 1) for place, x in enumerate(first)]
            yield rare, [self._part(place, x[1:], 0, other=1) for place, x in enumerate(first)]

    def scaled(self, first: list[Tensor]) -> Iterator[list[Tensor]]:
        """Yield samples whose whole numbers of unknown range are larger and larger."""
        for scale in self._scales:
            yield [self._scaled(place, x[1:], scale) for place, x in enumerate(first)]

    def _values(self, place: int, shape: Sequence[int]) -> Tensor:
        generator = torch.Generator().manual_seed(place)
        dtype = self.inputs[place].dtype
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, self._top(place) + 1, shape, generator=generator).to(dtype)

    def _top(self, place: int) -> int:
        """Return the largest whole number that an input is known to take. Every table has rows 0 and 1."""
        dtype = self.inputs[place].dtype
        top = self._largest.get(place, 1)
        return min(top, 1 if dtype is torch.bool else torch.iinfo(dtype).max)

    def _part(self, place: int, x: Tensor, part: int, *, other: int = 0) -> Tensor:
        """Return indices of one part of their range; other numbers as they are, or other ones."""
        if x.is_floating_point():
            return x * 16 if other else x
        if (top := self._top(place)) <= 1:
            return (1 - x.long()).to(x.dtype) if other else x
        low, high = top * part // _PARTS, top * (part + 1) // _PARTS
        generator = torch.Generator().manual_seed(place + 1)
        return torch.randint(low, high + 1, x.shape, generator=generator).to(x.dtype)

    def _scaled(self, place: int, x: Tensor, scale: int) -> Tensor:
        if x.is_floating_point() or x.dtype is torch.bool or place in self._largest:
            return x
        return (x.long() * min(scale, torch.iinfo(x.dtype).max)).to(x.dtype)


def _why_alone(run: Run, made: _MadeUp, first: list[Tensor], outputs: Sequence[Tensor], size: int | None) -> str:
    rows = len(first[0])
    if any(y.dim() == 0 or len(y) != rows for y in outputs):
        return "the first dimension of an output is not the batch's"
    if rows == 1:
        return ""
    moved = run(*(x.roll(1, 0) for x in first))
    if not all(is_near(y.roll(1, 0), z) for y, z in zip(outputs, moved, strict=True)):
        return "a sample's outputs depend on its place in the batch"
    if _mixes(run, made, first):
        return "a sample's outputs depend on the other samples of its batch"
    alone = None if size is not None else _tried(run, [x[:1] for x in first])
    if alone is not None and any(
        y[:1].shape != z.shape or not is_close(y[:1], z) for y, z in zip(outputs, alone, strict=True)
    ):
        return "a sample's outputs depend on the size of its batch"
    return ""


def _mixes(run: Run, made: _MadeUp, first: list[Tensor]) -> bool:
    """Return whether a sample's outputs change with the others of its batch, as against copies of itself."""
    num_others = len(first[0]) - 1

    def among(own: list[Tensor], others: list[Tensor]) -> list[Tensor]:
        """Return a sample's outputs."""
        return [y[:1].clone() for y in run(*(torch.cat((x, other)) for x, other in zip(own, others, strict=True)))]

    def copies(own: list[Tensor]) -> list[Tensor]:
        return [x.expand(num_others, *x.shape[1:]) for x in own]

    def differs(own: list[Tensor], others: list[Tensor]) -> bool:
        outputs = zip(among(own, copies(own)), among(own, others), strict=True)
        return not all(is_near(y, z) for y, z in outputs)

    if any(differs(own, others) for own, others in made.company(first)):
        return True
    own = [x[:1] for x in first]
    for others in made.scaled(first):
        try:
            if differs(own, others):
                return True
        except Exception:  # noqa: BLE001 - the model may raise anything for numbers that it is not made for
            return False
    return False


def _tried(run: Run, tensors: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """Return a model's outputs; None where it does not take tensors of these sizes."""
    try:
        return run(*tensors)
    except Exception:  # noqa: BLE001 - the model may raise anything for sizes that it is not made for
        return None


def is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether two outputs for the same sample differ by no more than kernels for other sizes do."""
    return is_near(a, b, tolerance=1e-2) or distance_between(a, b) <= _MAX_DISTANCE


def _output_specs(
    run: Run, made: _MadeUp, first: list[Tensor], outputs: Sequence[Tensor], names: Sequence[str]
) -> tuple[TensorSpec, ...]:
    """Return the outputs' specs. A dimension is free where it changes with the sizes of the inputs."""
    inputs, rows = made.inputs, len(first[0]) if first[0].dim() else 1
    changed = [tuple(y.shape) for y in outputs]
    is_free = any(size is None for spec in inputs for size in spec.shape)
    if is_free:
        sizes = {
            x.shape[dim]
            for x, spec in zip(first, inputs, strict=True)
            for dim in range(x.dim())
            if spec.shape[dim] is None and dim > 0
        }
        other = _tried(run, made.batch(rows + 1, max(sizes, default=0) + 8))
        if other is None:  # then only the first dimension is known to be free
            changed = [(-1, *y.shape[1:]) if y.dim() else () for y in outputs]
        else:
            changed = [tuple(y.shape) for y in other]
    return tuple(
        output_spec(name, y, tuple(a if a == b else None for a, b in zip(y.shape, other_shape, strict=False)))
        for name, y, other_shape in zip(names, outputs, changed, strict=True)
    )
