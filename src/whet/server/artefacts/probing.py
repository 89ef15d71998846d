"""Find by calls of a model whether the samples of a batch are independent of each other.

A model whose code mixes the samples of a batch (a normalisation over the batch, one quantisation range for all of it)
would give each client an answer that depends on the others. Such a model runs one request at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.measure.closeness import distance_between
from whet.server.artefacts.tensor_specs import TensorSpec, output_spec
from whet.workload import is_near

Run = Callable[..., Sequence[Tensor]]

_FREE_SIZES = (16, 32, 64, 128, 224, 8, 256, 1)  # tried in turn for dimensions that are free beside the first
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


def probe(run: Run, inputs: Sequence[TensorSpec], names: Sequence[str]) -> Batching:
    """Call a model with made-up inputs and return how requests may share its calls.

    Args:
        run: Takes and returns flat tensors.
        inputs: What it takes, in order.
        names: Of its outputs, in order.
    """
    firsts = {spec.shape[0] if spec.shape else 0 for spec in inputs}
    size = next(iter(firsts))
    for free in _FREE_SIZES:
        rows = 2 if size is None else size
        first = [_made_up(spec, rows, free, seed=place) for place, spec in enumerate(inputs)]
        try:
            with torch.no_grad():
                outputs = run(*first)
                why = _why_alone(run, first, outputs, size) if len(firsts) == 1 else _NO_COMMON_DIMENSION
        except Exception:  # noqa: BLE001 - the model may raise anything for sizes that it is not made for
            continue
        specs = _output_specs(run, inputs, first, outputs, names)
        return Batching(specs, size, why, takes_one=size is not None or _runs(run, [x[:1] for x in first]))
    return Batching((), size, "no made-up input could be run")


_NO_COMMON_DIMENSION = "its inputs have no batch dimension in common"


def _why_alone(run: Run, first: list[Tensor], outputs: Sequence[Tensor], size: int | None) -> str:
    rows = len(first[0])
    if any(y.dim() == 0 or len(y) != rows for y in outputs):
        return "the first dimension of an output is not the batch's"
    if rows == 1:
        return ""
    moved = run(*(x.roll(1, 0) for x in first))
    if not all(is_near(y.roll(1, 0), z) for y, z in zip(outputs, moved, strict=True)):
        return "a sample's outputs depend on its place in the batch"
    for change in (_repeated, _enlarged):
        others = run(*(torch.cat((x[:1], change(x))) for x in first))
        if not all(is_near(y[:1], z[:1]) for y, z in zip(outputs, others, strict=True)):
            return "a sample's outputs depend on the other samples of its batch"
    if size is None and _runs(run, single := [x[:1] for x in first]):
        alone = run(*single)
        if any(y[:1].shape != z.shape or not is_close(y[:1], z) for y, z in zip(outputs, alone, strict=True)):
            return "a sample's outputs depend on the size of its batch"
    return ""


def _repeated(x: Tensor) -> Tensor:
    """Return other samples in the place of all but the first: the first again."""
    return x[:1].expand_as(x[1:])


def _enlarged(x: Tensor) -> Tensor:
    """Return other samples in the place of all but the first: far larger ones, or zeros for ones."""
    return x[1:] * 16 if x.is_floating_point() else (1 - x[1:].long()).to(x.dtype)


def _runs(run: Run, tensors: Sequence[Tensor]) -> bool:
    try:
        with torch.no_grad():
            run(*tensors)
    except Exception:  # noqa: BLE001 - the model may raise anything for sizes that it is not made for
        return False
    return True


def is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether two outputs for the same sample differ by no more than kernels for other sizes do."""
    return is_near(a, b, tolerance=1e-2) or distance_between(a, b) <= _MAX_DISTANCE


def _output_specs(
    run: Run, inputs: Sequence[TensorSpec], first: list[Tensor], outputs: Sequence[Tensor], names: Sequence[str]
) -> tuple[TensorSpec, ...]:
    """Return the outputs' specs. A dimension is free where it changes with the sizes of the inputs."""
    rows = len(first[0]) if first[0].dim() else 1
    changed = [tuple(y.shape) for y in outputs]
    is_free = any(size is None for spec in inputs for size in spec.shape)
    if is_free:
        sizes = {
            x.shape[dim]
            for x, spec in zip(first, inputs, strict=True)
            for dim in range(x.dim())
            if spec.shape[dim] is None and dim > 0
        }
        other = [_made_up(spec, rows + 1, max(sizes, default=0) + 8, seed=0) for spec in inputs]
        try:
            with torch.no_grad():
                changed = [tuple(y.shape) for y in run(*other)]
        except Exception:  # noqa: BLE001 - as above: then only the first dimension is known to be free
            changed = [(-1, *y.shape[1:]) if y.dim() else () for y in outputs]
    return tuple(
        output_spec(name, y, tuple(a if a == b else None for a, b in zip(y.shape, other_shape, strict=False)))
        for name, y, other_shape in zip(names, outputs, changed, strict=True)
    )


def _made_up(spec: TensorSpec, rows: int, free: int, seed: int) -> Tensor:
    """Return normal noise, or zeros and ones of other types: every table has rows 0 and 1."""
    shape = [free if size is None else size for size in spec.shape]
    if spec.shape and spec.shape[0] is None:
        shape[0] = rows
    generator = torch.Generator().manual_seed(seed)
    if spec.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(spec.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(spec.dtype)
