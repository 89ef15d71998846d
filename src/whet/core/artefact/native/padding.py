"""Find which steps of a program can leave out the rows of padding, and at a call, which rows are padding.

A row is one place of a sequence. It may be left out where no output can depend on it: every mask of attention hides it
from all queries, every factor that rows are multiplied by before they are added up is 0 there, and no step takes it by
its place or index. That follows from the program and from the numbers of each call, whatever the model is. Where a step
reads rows in any other way, or an output holds them, nothing is left out.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from whet.core.artefact.native.program import (
    AttendStep,
    CopyStep,
    ElementwiseStep,
    EmbedStep,
    FillStep,
    GatedStep,
    LinearStep,
    NormaliseStep,
    Place,
    Program,
    ReduceStep,
    SoftmaxStep,
    Step,
    read_by,
    written_by,
)
from whet.core.artefact.native.sizes import Sizes

Numbers = NDArray[Any]
Of = Literal["all", "seen", "hidden"]

_HIDDEN = -1e30  # added to a score, it makes its weight exactly 0
_FIRST = (LinearStep, GatedStep, NormaliseStep, EmbedStep)  # what makes rows of what has none
_ROW_DIMS = {
    **{LinearStep: 1, GatedStep: 1, NormaliseStep: 1, EmbedStep: 1, SoftmaxStep: 1, ReduceStep: 1},
    **{ElementwiseStep: 0, CopyStep: 0, FillStep: 0},
}
"""The steps that work row by row, with the last dimensions of their places that are a row's own."""
_BARE = ((EmbedStep, "indices"), (ReduceStep, "out"))  # the places with one number a row instead
_OF_ALL = ("tables", "norm")  # what every row reads


@dataclass(frozen=True)
class Lying(Place):
    """Describe a place whose sizes are known."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def arranged(self, order: Sequence[int]) -> "Lying":
        """Return the place with these dimensions first; the others follow in order."""
        order = [*order, *(i for i in range(len(self.shape)) if i not in order)]
        shape, strides = (tuple(sizes[i] for i in order) for sizes in (self.shape, self.strides))
        return dataclasses.replace(self, shape=shape, strides=strides)

    def split(self, dim: int, size: int) -> "Lying":
        """Return the place with a dimension as two, of which the second has a size."""
        strides = (self.strides[dim] * size, self.strides[dim])
        return dataclasses.replace(
            self,
            shape=(*self.shape[:dim], self.shape[dim] // size, size, *self.shape[dim + 1 :]),
            strides=(*self.strides[:dim], *strides, *self.strides[dim + 1 :]),
        )

    def of(self, numbers: Sequence[Numbers]) -> Numbers:
        """Return the numbers of the place; along a dimension where they are repeated, they are there once."""
        first = numbers[self.buffer][self.offset :]
        shape = [size if stride else min(1, size) for size, stride in zip(self.shape, self.strides, strict=True)]
        return np.lib.stride_tricks.as_strided(first, shape, [stride * first.itemsize for stride in self.strides])


@dataclass
class Padded:
    """Hold steps with the rows that each works on, and what decides which rows of a batch are padding.

    Attributes:
        batch: The sizes [B, L].
        masks: What attention adds to scores or does not hide, [B, H, T, L].
        factors: What rows are multiplied by, [B, L, ...].
        picks: The indices of rows that are taken, among B * L.
        places: The places that are taken of each sequence.
    """

    batch: tuple[int, int]
    steps: list[tuple[Step, Of]] = field(default_factory=list)
    masks: list[Lying] = field(default_factory=list)
    factors: list[Lying] = field(default_factory=list)
    picks: list[Lying] = field(default_factory=list)
    places: set[int] = field(default_factory=set)

    def seen(self, numbers: Sequence[Numbers]) -> NDArray[np.bool_] | None:
        """Return which rows [B, L] are no padding, or None where none is."""
        found = np.zeros(self.batch, np.bool_)
        found[:, list(self.places)] = True
        for mask in dict.fromkeys(self.masks):
            found |= _shown(mask.of(numbers))
            if found.all():
                return None
        for place in dict.fromkeys(self.factors):
            factor = place.of(numbers) != 0
            found |= factor.any(tuple(range(2, factor.ndim)))
        for pick in self.picks:
            rows = pick.of(numbers)
            found.reshape(-1)[rows[(rows >= 0) & (rows < found.size)]] = True
        return None if found.all() else found


def _shown(mask: Numbers) -> NDArray[np.bool_]:
    """Return which keys any query sees, [B, L] or sizes of 1."""
    if mask.dtype == np.bool_:
        return cast("NDArray[np.bool_]", mask.any((1, 2)))
    sees = ~(mask <= _HIDDEN)
    blind: NDArray[np.bool_] = np.logical_not(sees.any(3))  # such a query weighs all keys
    return cast("NDArray[np.bool_]", sees.any((1, 2)) | blind.any((1, 2))[:, None])


def without_padding(program: Program, sizes: Sizes) -> Padded | None:
    """Return how a program leaves out padding, or None where it has to compute all rows."""
    if program.padding is None:
        return None
    batch = sizes(program.padding.batch), sizes(program.padding.length)
    analysis = _Analysis(program, batch)
    if batch[1] < 2 or not all(analysis.add(_known(step, sizes)) for step in program.steps):
        return None
    outputs = [_known(result.place, sizes) for result in program.results if result.place is not None]
    return analysis.finished() if all(map(analysis.takes, outputs)) else None


class _Analysis:
    """Go through steps in order, and keep which buffers lack the rows of padding, and where these lie."""

    def __init__(self, program: Program, batch: tuple[int, int]) -> None:
        self._program = program
        self._padded = Padded(batch)
        self._lacking: dict[int, tuple[int, int]] = {}  # the strides of sequences and of places in each buffer
        self._writers: dict[int, list[int]] = {}  # of each buffer, the steps
        self._cleared: set[int] = set()  # steps after which the rows of padding are set to zero

    def add(self, step: Step) -> bool:
        """Take in a step, and return whether it needs no row of padding."""
        made = self._attention(step) if isinstance(step, AttendStep) else self._by_row(step)
        if made is None and not all(self._takes(step, place) for place in _read(step)):
            return False
        for place in written_by(step):
            self._writers.setdefault(place.buffer, []).append(len(self._padded.steps))
        self._padded.steps.append((step, "all") if made is None else (made, "seen"))
        return True

    def finished(self) -> Padded | None:
        """Return what was found, or None where no step leaves anything out."""
        steps = self._padded.steps
        self._padded.steps = []
        for i, one in enumerate(steps):
            self._padded.steps.append(one)
            if i in self._cleared:
                self._padded.steps.append((FillStep(next(written_by(one[0])), 0.0), "hidden"))
        return self._padded if any(of == "seen" for _, of in steps) else None

    def takes(self, place: Lying) -> bool:
        """Return whether what a place holds is right although rows of padding were left out, and see to it."""
        if place.buffer not in self._lacking:
            return True
        return self._is_one_place(place) or self._is_cleared(place.buffer)

    def _takes(self, step: Step, place: Lying) -> bool:
        is_table = isinstance(step, EmbedStep) and place in step.tables
        return (is_table and self._is_picked(cast(EmbedStep, step), place)) or self.takes(place)

    # What needs no row of padding though it does not work row by row

    def _is_one_place(self, place: Lying) -> bool:
        """Return whether one place of every sequence is read, which then counts as seen."""
        num_rows, length = self._padded.batch
        strides = self._lacking[place.buffer]
        own = [i for i, size in enumerate(place.shape) if size == num_rows > 1 and place.strides[i] == strides[0]]
        rest = place.arranged(own[:1])
        first = place.offset // strides[1] % length
        moved = dataclasses.replace(rest, offset=place.offset - first * strides[1])
        if (num_rows > 1 and not own) or not self._is_within(moved, strides, min(1, len(own))):
            return False
        self._padded.places.add(first)
        return True

    def _is_cleared(self, buffer: int) -> bool:
        """Return whether rows are what a factor of each made of them: where it is 0, they are set to 0."""
        writers = self._writers[buffer]
        step = self._padded.steps[writers[0]][0]
        if len(writers) > 1 or not isinstance(step, ElementwiseStep) or not step.code or step.code[-1][0] != "mul":
            return False
        inputs = [cast(Lying, step.inputs[i]) for i in step.code[-1][1:] if i < len(step.inputs)]
        factors = [place for place in inputs if self._is_given(place)]
        if not factors:
            return False
        self._padded.factors.append(factors[0])
        self._cleared.add(writers[0])
        del self._lacking[buffer]
        return True

    def _is_picked(self, step: EmbedStep, place: Lying) -> bool:
        """Return whether rows are taken by indices that are given, which then count as seen."""
        num_rows, length = self._padded.batch
        is_rows = place.shape[0] == num_rows * length and self._is_aligned(place.split(0, length))
        indices = [cast(Lying, place) for place in step.indices]
        if not is_rows or not all(map(self._is_given, indices)):
            return False
        self._padded.picks += indices
        return True

    def _is_given(self, place: Lying) -> bool:
        """Return whether the numbers of a place are there before the steps run."""
        return self._program.buffers[place.buffer].origin in ("input", "value", "tensor")

    # What works row by row

    def _by_row(self, step: Step) -> Step | None:
        """Return a step whose places begin with the batch [B, L], or None where it does not work row by row."""
        read = [place for place in _read(step) if place.buffer in self._lacking]
        if type(step) not in _ROW_DIMS or not (read or isinstance(step, _FIRST)):
            return None
        shapes = {place.shape[: len(place.shape) - own] for place, own in _row_places(step)}
        if len(shapes) > 1:
            return None
        for arrange in self._arrangements(shapes.pop()):
            made = _changed(step, arrange)
            places = [place for place, _ in _row_places(made)]
            if all(place.buffer not in self._lacking or self._is_aligned(place) for place in places) and not any(
                table.buffer in self._lacking for table in getattr(step, "tables", ())
            ):
                written = [cast(Lying, place) for place in written_by(made)]
                if all(map(self._may_lack, written)):
                    self._lacking |= {place.buffer: place.strides[:2] for place in written}  # type: ignore[misc]
                    return made
        return None

    def _attention(self, step: AttendStep) -> Step | None:
        num_rows, length = self._padded.batch
        places = [cast(Lying, place).arranged((0, 2)) for place in (step.q, step.k, step.v)]
        is_own = all(place.shape[:2] == (num_rows, length) for place in places)
        if not any(place.buffer in self._lacking for place in places) or not is_own or step.mask is None:
            return None
        out, mask = cast(Lying, step.out).arranged((0, 2)), self._given_mask(cast(Lying, step.mask))
        aligned = all(place.buffer not in self._lacking or self._is_aligned(place) for place in places)
        if mask is None or not aligned or not self._may_lack(out):
            return None
        self._padded.masks.append(mask)
        self._lacking[out.buffer] = out.strides[0], out.strides[1]
        return step

    def _given_mask(self, mask: Lying) -> Lying | None:
        """Return the numbers that are there before the steps run and hide keys; a bias may be added to them."""
        if self._is_given(mask):
            return mask
        writers = self._writers.get(mask.buffer, [])
        step = self._padded.steps[writers[0]][0] if len(writers) == 1 else None
        if not isinstance(step, ElementwiseStep) or step.code != (("add", 0, 1),) or step.out != mask:
            return None
        given = [cast(Lying, place) for place in step.inputs if self._is_hiding(cast(Lying, place))]
        return given[0] if len(given) == 1 else None

    def _is_hiding(self, place: Lying) -> bool:
        return self._program.buffers[place.buffer].origin in ("input", "value") and place.strides[0] != 0

    def _arrangements(self, shape: Sequence[int]) -> Iterator[Callable[[Lying], Lying]]:
        """Yield the ways in which dimensions of a shape can be those of the batch: each puts these first."""
        num_rows, length = self._padded.batch
        for dim, size in enumerate(shape):
            if size == num_rows * length:
                yield functools.partial(_split, dim=dim, size=length)
        for first, size in enumerate(shape):
            for second, other in enumerate(shape):
                if first != second and (size, other) == (num_rows, length):
                    yield functools.partial(Lying.arranged, order=(first, second))

    def _is_aligned(self, place: Lying) -> bool:
        """Return whether a place [B, L, ...] holds of each row what lies in this row of the buffer."""
        strides = self._lacking[place.buffer]
        is_same = place.strides[1] == strides[1] and (self._padded.batch[0] == 1 or place.strides[0] == strides[0])
        return is_same and self._is_within(place, strides, 2)

    def _may_lack(self, place: Lying) -> bool:
        """Return whether rows of a place [B, L, ...] lie apart in its buffer, as they do already if it lacks some."""
        known = self._lacking.get(place.buffer)
        if known is not None:
            return self._is_aligned(place)
        return place.strides[1] > 0 and self._is_within(place, (place.strides[0], place.strides[1]), 2)

    def _is_within(self, place: Lying, strides: tuple[int, int], num_skipped: int) -> bool:
        """Return whether dimensions, all but the first ones, and the offset never lead from one row to another."""
        num_rows, length = self._padded.batch
        of_sequence, of_row = strides
        ways = list(zip(place.shape, place.strides, strict=True))[num_skipped:]
        near = sum((size - 1) * stride for size, stride in ways if stride < of_row)
        far = [(size - 1) * stride for size, stride in ways if stride >= of_row and size > 1]
        is_far_alone = all(stride % (of_row * length) == 0 for size, stride in ways if stride >= of_row and size > 1)
        if place.offset % (of_row * length) + near >= of_row or not is_far_alone:
            return False
        is_whole = of_sequence % (of_row * length) == 0
        return num_rows == 1 or (is_whole and place.offset + near + sum(far) < of_sequence)


def _split(place: Lying, dim: int, size: int) -> Lying:
    """Return a place with a dimension as two, which come first."""
    return place.split(dim, size).arranged((dim, dim + 1))


def _read(step: Step) -> list[Lying]:
    return [place for place in read_by(step) if isinstance(place, Lying)]


def _row_places(step: Step) -> Iterator[tuple[Lying, int]]:
    """Yield the places of a step that hold rows, with how many dimensions are a row's own."""
    for item in dataclasses.fields(step):
        found = getattr(step, item.name)
        own = 0 if (type(step), item.name) in _BARE else _ROW_DIMS[type(step)]
        for place in found if isinstance(found, tuple) else (found,):
            if isinstance(place, Lying) and item.name not in _OF_ALL:
                yield place, own


def _changed(step: Step, change: Callable[[Lying], Lying], left: Sequence[str] = _OF_ALL) -> Step:
    """Return a step with other places, but for those that are left as they are."""

    def changed(found: Any) -> Any:
        if isinstance(found, tuple):
            return tuple(map(changed, found))
        return change(found) if isinstance(found, Place) else found  # type: ignore[arg-type]

    fields = {item.name: getattr(step, item.name) for item in dataclasses.fields(step)}
    return dataclasses.replace(step, **{name: changed(found) for name, found in fields.items() if name not in left})


def _known(found: Any, sizes: Sizes) -> Any:
    """Return a step or a place with its sizes in numbers."""

    def known(place: Place) -> Lying:
        return Lying(place.buffer, sizes(place.offset), sizes.all(place.shape), sizes.all(place.strides))

    return known(found) if isinstance(found, Place) else _changed(found, known, left=("norm",))
