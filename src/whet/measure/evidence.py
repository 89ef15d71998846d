"""Keep what a measured variant computed (outputs, losses, tokens, frames), and compare it with another variant's.

Every kind of evidence can be sent between processes. Tensors lie in a safetensors file, and its path is sent.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from whet.measure.closeness import Closeness, Sums

LOSS_TOLERANCE = 0.01  # of the mean loss; sums in another order move it by less than a hundredth of that
OUTPUT_TOLERANCE = 1e-4  # distance: what float32 in another order of sums stays far below


class Agreement(BaseModel):
    """Say how closely the evidence of a new variant agrees with that of the old one.

    Attributes:
        is_same: Whether they agree within the tolerance of their kind.
        distance: How far they are apart, in the unit of their kind; 0 is equal. None where it cannot be computed.
        words: The agreement in words, as a clause.
    """

    model_config = ConfigDict(frozen=True)

    is_same: bool
    distance: float | None
    words: str


class Outputs(BaseModel):
    """Hold the outputs of a model for each of its batches, in a safetensors file of tensors named batch.position."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["outputs"] = "outputs"
    file: str

    @classmethod
    def write(cls, outputs: Sequence[Sequence[Tensor]], file: Path) -> "Outputs":
        named = {
            f"{i}.{j}": y.detach().cpu().contiguous().clone() for i, ys in enumerate(outputs) for j, y in enumerate(ys)
        }
        save_file(named, file)
        return cls(file=str(file))


class Losses(BaseModel):
    """Hold the loss of each optimiser step of a training run, from the first on; None where no loss was seen."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    kind: Literal["losses"] = "losses"
    by_step: tuple[float | None, ...]


class Tokens(BaseModel):
    """Hold the token ids of each answer of a decoder, in the order of the prompts."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["tokens"] = "tokens"
    answers: tuple[tuple[int, ...], ...]


class Drift(BaseModel):
    """Hold a stream's frames, whose differences may add up, in a safetensors file, in order: 0.0, 1.0 and so on."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["drift"] = "drift"
    file: str


Evidence = Annotated[Outputs | Losses | Tokens | Drift, Field(discriminator="kind")]


def agreement_between(old: Evidence, new: Evidence) -> Agreement:
    """Hold the evidence of a new variant against that of the old one. Evidence of two kinds does not agree."""
    match old, new:
        case Outputs(), Outputs():
            return _outputs_agreement(_tensors(old.file), _tensors(new.file))
        case Drift(), Drift():
            return _drift_agreement(_tensors(old.file), _tensors(new.file))
        case Losses(), Losses():
            return _losses_agreement(old.by_step, new.by_step)
        case Tokens(), Tokens():
            return _tokens_agreement(old.answers, new.answers)
    return Agreement(is_same=False, distance=None, words=f"the old variant gives {old.kind}, the new one {new.kind}")


def _tensors(file: str) -> dict[tuple[int, int], Tensor]:
    """Read the tensors of a file by batch and position, in order."""
    named = {tuple(map(int, name.split("."))): tensor for name, tensor in load_file(file).items()}
    return {(i, j): named[i, j] for i, j in sorted(named)}


def _closeness(
    old: dict[tuple[int, int], Tensor], new: dict[tuple[int, int], Tensor], *, by_column: bool = True
) -> list[Closeness] | str:
    """Return the closeness of each output over all batches, or why the tensors cannot be held against each other."""
    if old.keys() != new.keys():
        return f"the old variant returned {len(old)} tensors, the new one {len(new)}"
    sums: dict[int, Sums] = {}
    for (i, j), a in old.items():
        b = new[i, j]
        if a.shape != b.shape or a.is_complex() != b.is_complex():
            return f"output {j} of batch {i} is {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}"
        sums.setdefault(j, Sums(by_column=by_column)).add(a, b)
    return [total.closeness() for _, total in sorted(sums.items())]


def _outputs_agreement(old: dict[tuple[int, int], Tensor], new: dict[tuple[int, int], Tensor]) -> Agreement:
    found = _closeness(old, new)
    if isinstance(found, str):
        return Agreement(is_same=False, distance=None, words=f"other outputs: {found}")
    if any(one.distance is None for one in found):
        words = "other outputs: NaN or infinity in places where the other variant has none"
        return Agreement(is_same=False, distance=None, words=words)
    distance = max((one.distance or 0.0 for one in found), default=0.0)
    cosine = min((one.cosine for one in found), default=1.0)
    is_same = distance <= OUTPUT_TOLERANCE
    words = f"{'same' if is_same else 'other'} outputs: distance {distance:.2g}, cosine {cosine:.6f}"
    worst = max(range(len(found)), key=lambda i: found[i].distance or 0.0, default=0)
    if found and (column := found[worst].column) is not None:
        words += f"; output {worst}, {column.words}"
    return Agreement(is_same=is_same, distance=distance, words=words)


def _drift_agreement(old: dict[tuple[int, int], Tensor], new: dict[tuple[int, int], Tensor]) -> Agreement:
    """Hold two streams against each other frame by frame; the worst frame counts."""
    if old.keys() != new.keys():
        words = f"other frames: the old variant gave {len(old)}, the new one {len(new)}"
        return Agreement(is_same=False, distance=None, words=words)
    distances: list[float] = []
    for place, frame in old.items():
        found = _closeness({(0, 0): frame}, {(0, 0): new[place]}, by_column=False)
        if isinstance(found, str) or found[0].distance is None:
            words = f"other frames: frame {place[0]} has another shape, or values that are not finite"
            return Agreement(is_same=False, distance=None, words=words)
        distances.append(found[0].distance)
    worst = max(distances, default=0.0)
    is_same = worst <= OUTPUT_TOLERANCE
    last = distances[-1] if distances else 0.0
    words = f"{'same' if is_same else 'other'} frames: distance {worst:.2g} at worst, {last:.2g} in the last frame"
    return Agreement(is_same=is_same, distance=worst, words=words)


def _losses_agreement(old: Sequence[float | None], new: Sequence[float | None]) -> Agreement:
    """Hold the mean losses of the steps that both made against each other, relative to the old variant's."""
    both = [(a, b) for a, b in zip(old, new, strict=False) if a is not None and b is not None]
    if not both:
        return Agreement(is_same=False, distance=None, words="no loss was seen: backward was called on no scalar")
    if not all(math.isfinite(value) for pair in both for value in pair):
        return Agreement(is_same=False, distance=math.inf, words="a loss is not finite")
    scale = statistics.fmean(abs(a) for a, _ in both) or 1.0
    gap = abs(statistics.fmean(a - b for a, b in both)) / scale
    if gap <= LOSS_TOLERANCE:
        largest = max(abs(a - b) for a, b in both) / scale
        means, single = f"means {100 * gap:.2g}% apart", f"single steps {100 * largest:.2g}%"
        return Agreement(is_same=True, distance=gap, words=f"same loss over {len(both)} steps: {means}, {single}")
    where = next(i for i, (a, b) in enumerate(both) if abs(a - b) > LOSS_TOLERANCE * scale)
    words = f"another loss: means {100 * gap:.2g}% apart, from step {where + 1} on"
    return Agreement(is_same=False, distance=gap, words=words)


def _tokens_agreement(old: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> Agreement:
    """Count the tokens up to the first difference of each answer; behind it, the two decoders answer other texts."""
    if len(old) != len(new):
        words = f"other answers: the old variant gave {len(old)}, the new one {len(new)}"
        return Agreement(is_same=False, distance=None, words=words)
    num_all = sum(max(len(a), len(b)) for a, b in zip(old, new, strict=True))
    num_same = sum(_common(a, b) for a, b in zip(old, new, strict=True))
    num_equal = sum(list(a) == list(b) for a, b in zip(old, new, strict=True))
    distance = 1 - num_same / num_all if num_all else 0.0
    words = f"{num_equal} of {len(old)} answers are equal; {num_same} of {num_all} tokens come before a difference"
    return Agreement(is_same=num_equal == len(old), distance=distance, words=words)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
