"""Compare a variant with its model on inputs that were not seen.

The model's own answers are the reference wherever they are finite. A variant may differ as much as rounding explains:
its own, as it shows on inputs that were seen, and the model's, as float64 and weights moved by a little show it. A
variant that raises an error has refused the inputs, and so has not answered wrongly.
"""

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.artefact import program
from whet.core.signature import FlatModel
from whet.core.workload import ExaminedWorkload
from whet.core.workload.unseen import Unseen, unseen
from whet.errors import TargetError
from whet.tuner.output_error import real, relative_error, rms

Run = Callable[..., Sequence[Tensor]]

_TOLERANCE = 1e-3  # of the value and of the usual one: sums in another order move results by less
_MARGIN = 5.0  # times the error on inputs that were seen, or that of the model's own rounding
_COARSE = 0.05  # of the usual value, for a variant that rounds
_MOVED = 1e-6  # of each weight
_BROKEN = 0.9  # of the usual value, or of all integers: no rounding errs as much
_LIMIT_S = 15.0  # of this thread, and no new inputs are tried, the most usual ones having come first

# Operators whose results differ between runtimes, for the message.
_KNOWN = frozenset({
    "topk", "sort", "argsort", "argmax", "argmin", "max", "min", "floor_divide", "remainder", "fmod",
    "scaled_dot_product_attention", "cumsum", "scatter", "scatter_add", "index_put", "searchsorted", "bucketize",
    "bitwise_and", "bitwise_or", "bitwise_xor", "__lshift__", "__rshift__",
})  # fmt: skip


def difference(examined: ExaminedWorkload, run: Run, *, rounds: bool, in_process: bool = False) -> str:
    """Return how a variant answers otherwise than the model on inputs that were not seen, in words, or "".

    Nothing is tried on a GPU, since a wrong index would end the process.

    Args:
        run: The variant, on flat tensors.
        rounds: Whether the variant computes in fewer bits than float32.
        in_process: Whether the model's own code runs in the variant. It is then not called with the largest integers,
            which it might take for sizes, nor with other sizes, for which it would be compiled again.
    """
    if examined.device_type != "cpu":
        return ""
    batch, wanted = examined.flat_calibration[0], examined.outputs[0]
    with torch.no_grad():
        seen = [relative_error(a, b) for a, b in zip(run(*batch), wanted, strict=False)]
    judge = _Judge(examined, seen, is_exact=not rounds)
    started = time.thread_time()
    others = unseen(examined.flat_calibration, None if in_process else examined.signature)
    for other in itertools.chain([Unseen("the inputs given", batch, is_usual=True)], others):
        if in_process and other.is_extreme:
            continue
        if time.thread_time() - started > _LIMIT_S:
            break
        if why := _tried(judge, run, other):
            return f"with {other.how} the variant answers otherwise than the model: {why}{_suspects(examined)}"
    return ""


def _tried(judge: "_Judge", run: Run, other: Unseen) -> str:
    """Return how a variant differs for inputs, or for each change alone where one of the two does not bear all."""
    found = _fault(judge, run, other.tensors, is_usual=other.is_usual)
    if found is not None:
        return found
    return next(filter(None, (_fault(judge, run, tensors, is_usual=other.is_usual) for tensors in other.alone)), "")


def _fault(judge: "_Judge", run: Run, tensors: Sequence[Tensor], *, is_usual: bool) -> str | None:
    """Return what is wrong with a variant's answers, or ""; None where the model or the variant gives none."""
    try:
        expected = judge.answers(tensors)
        with torch.no_grad():
            found = [y.clone() for y in run(*(x.clone() for x in tensors))]
    except Exception:  # noqa: BLE001 - values that the model is not made for, a guard, whatever a runtime raises
        return None
    return judge.fault(tensors, found, expected, is_usual=is_usual)


@dataclass
class _Judge:
    """Judge a variant's answers.

    Attributes:
        seen: The variant's error for each output, on inputs that were seen.
        is_exact: Whether the variant computes in full precision.
    """

    examined: ExaminedWorkload
    seen: Sequence[float]
    is_exact: bool
    _others: list[Run] | None = field(default=None, init=False)

    def answers(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return _answers(self.examined.workload.model, self.examined, tensors)

    def fault(
        self, tensors: Sequence[Tensor], found: Sequence[Tensor], expected: Sequence[Tensor], *, is_usual: bool
    ) -> str:
        if [(y.shape, y.dtype) for y in found] != [(y.shape, y.dtype) for y in expected]:
            return "its outputs have other shapes or dtypes"
        for j, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            if self._is_like(ours, theirs, self.seen[j], [], is_usual=is_usual):
                continue
            noisy = [others[j] for others in self._moved(tensors) if others[j].shape == theirs.shape]
            if not self._is_like(ours, theirs, self.seen[j], noisy, is_usual=is_usual):
                return _in_words(j, ours, theirs)
        return ""

    def _is_like(self, ours: Tensor, theirs: Tensor, seen: float, noisy: Sequence[Tensor], *, is_usual: bool) -> bool:
        is_whole = not (theirs.is_floating_point() or theirs.is_complex())
        if not is_whole:
            ours, theirs, *noisy = (real(y).double() for y in (ours, theirs, *noisy))
        counts = theirs.isfinite()
        for other in noisy:
            counts = counts & other.isfinite()
        a, b, moved = ours[counts], theirs[counts], [other[counts] for other in noisy]
        if not a.isfinite().all():
            return False
        if not a.numel() or not (self.is_exact or is_usual):
            return True
        noise = max((relative_error(other, b) for other in moved), default=0.0)
        if not self.is_exact:
            return relative_error(a, b) <= min(_BROKEN, _MARGIN * max(seen, noise) + _COARSE)
        if is_whole:
            return relative_error(a, b) <= _MARGIN * noise
        usual = rms(b)
        allowed = _TOLERANCE * (b.abs() + usual) + 2 * _MARGIN * noise * usual
        for other in moved:
            allowed = allowed + 2 * _MARGIN * (other - b).abs()
        return bool(((a - b).abs() <= allowed).all())

    def _moved(self, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Yield the answers of the model in float64, and with its weights moved by a little."""
        for run in self._originals():
            try:
                yield list(run(*(x.clone() for x in tensors)))
            except Exception:  # noqa: BLE001 - such as code that names float32
                continue

    def _originals(self) -> list[Run]:
        if self._others is None:
            self._others = []
            try:
                size = _MOVED if self.is_exact else min(max(self.seen, default=0.0), _COARSE)
                moved = _with_moved_weights(copy.deepcopy(self.examined.workload.model), size)
                self._others.append(lambda *x: _answers(moved, self.examined, x))
                double = copy.deepcopy(self.examined.workload.model).double()
                self._others.append(lambda *x: _answers(double, self.examined, [_doubled(y) for y in x]))
            except Exception:  # noqa: BLE001 - a model that cannot be copied
                return self._others
        return self._others


def _answers(model: nn.Module, examined: ExaminedWorkload, tensors: Sequence[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        found = FlatModel(model, examined.signature).eval()(*(x.clone() for x in tensors))
        return [y.clone() for y in found]


def _with_moved_weights(model: nn.Module, size: float) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point():
                weight.mul_(1 + size * torch.randn(weight.shape, generator=generator).to(weight))
    return model


def _doubled(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _in_words(j: int, ours: Tensor, theirs: Tensor) -> str:
    ours, theirs = real(ours).double(), real(theirs).double()
    counts = theirs.isfinite()
    if not ours[counts].isfinite().all():
        return f"output {j} holds NaN or infinity where the model's does not"
    gap = (ours - theirs).abs()[counts]
    place = int(gap.argmax())
    return f"output {j} holds {ours[counts][place]:.6g} where the model's holds {theirs[counts][place]:.6g}"


def _suspects(examined: ExaminedWorkload) -> str:
    """Return the operators of the model that runtimes are known to compute differently, as an addition to a message."""
    try:
        called: set[Any] = program.operators(program.original(examined))
    except TargetError:
        return ""
    names = {op._schema.name.removeprefix("aten::") for op in called if isinstance(op, torch._ops.OpOverload)}
    found = sorted(names & _KNOWN)
    return f" (the model calls {', '.join(f'aten.{name}' for name in found)})" if found else ""
