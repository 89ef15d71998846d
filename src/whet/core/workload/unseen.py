"""Make inputs that were not seen from those that were, for trying a graph or an artefact beside its model.

    masks     zeros and ones: padded on the left and on the right, a single place kept, and empty rows
    integers  shuffled, negated, exchanged between inputs, at the ends of what was seen and of their dtype
    floats    scaled, shifted, negated, shuffled, rounded to few values, and dealt to other samples
    sizes     smaller and larger ones, where a dimension is free

Every input is always the same, and PyTorch's global generator is not used. Some are no sensible inputs, and the model
may raise an error for them or answer NaN: it then says nothing about the artefact.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from whet.core.side_effects import shuffled
from whet.core.signature import Signature, free_dimensions

Tensors = tuple[Tensor, ...]
_Ends = tuple[float, float]
_Change = Callable[
    [Tensor, int, _Ends], Tensor
]  # takes a tensor, its place among the inputs, and the ends of what was seen

_MASKED = -1e4  # and less, beside zeros: a mask that is added to scores
_SCALE = 10.0
_FEW = 4  # values that floats are rounded to, so that some are equal


@dataclass(frozen=True)
class Unseen:
    """Describe inputs that were not seen.

    Attributes:
        how: How they were changed, as in "its inputs with ...".
        is_usual: Whether their values lie within the range of what was seen, so that a variant with fixed ranges
            should bear them too.
        is_extreme: Whether they hold the largest integers of their dtype. Only a graph should be called with them, as
            code might take one for a size.
        alone: The same change, of one input at a time; for models that don't bear all at once.
    """

    how: str
    tensors: Tensors
    is_usual: bool = False
    is_extreme: bool = False
    alone: tuple[Tensors, ...] = ()


def unseen(batches: Sequence[Sequence[Tensor]], signature: Signature | None = None) -> Iterator[Unseen]:
    """Yield inputs that were not seen, the most usual ones first, from flat inputs that were.

    Without a signature, which says which dimensions are free, sizes stay as they are.
    """
    given = tuple(batches[0])
    kinds = [_kind([batch[i] for batch in batches]) for i in range(len(given))]
    ends = [_ends([batch[i] for batch in batches]) for i in range(len(given))]

    def changed(
        how: str, kind: str, change: _Change, *, is_usual: bool = False, is_extreme: bool = False
    ) -> Iterator[Unseen]:
        places = [i for i, found in enumerate(kinds) if found == kind and given[i].numel()]
        others = {i: change(given[i], i, ends[i]) for i in places}
        others = {i: x for i, x in others.items() if not torch.equal(x, given[i])}
        if others:
            alone = tuple((*given[:i], x, *given[i + 1 :]) for i, x in others.items()) if len(others) > 1 else ()
            yield Unseen(how, tuple(others.get(i, x) for i, x in enumerate(given)), is_usual, is_extreme, alone)

    for how, rows in _PADDINGS:
        yield from changed(f"masks {how}", "mask", partial(_padded, rows), is_usual=True)
    yield from _exchanged(given, kinds)
    for how, kind, change, is_usual in _CHANGES:
        yield from changed(how, kind, change, is_usual=is_usual)
    yield from changed("the smallest integers of their dtype", "integer", partial(_extreme, 0), is_extreme=True)
    yield from changed("the largest integers of their dtype", "integer", partial(_extreme, 1), is_extreme=True)
    if signature is not None:
        yield from _resized(batches, signature)


def masked(batches: Sequence[Sequence[Tensor]]) -> Iterator[tuple[str, Tensors]]:
    """Yield inputs with other masks, each with its name in words."""
    for other in unseen(batches):
        if not other.how.startswith("masks"):
            return
        yield f" with {other.how}", other.tensors


# The places of each row that stay, as (first, end) in fractions of the row; None is a single place.
_Row = tuple[float, float] | None
_PADDINGS: tuple[tuple[str, tuple[_Row, ...]], ...] = (
    ("of ones", ((0, 1),)),
    ("padded on the left", ((0.5, 1), (0.25, 1), (0, 1), (0.85, 1))),
    ("padded on the right", ((0, 0.4), (0, 0.75), (0, 1), (0, 0.15))),
    ("that keep a single place", (None, (0, 1))),
    ("with empty rows", ((0, 0), (0, 1), (0.3, 0.8))),
)


def _kind(seen: Sequence[Tensor]) -> str:
    """Return "mask", "integer" or "float": a mask holds zeros and ones only, or zeros and what is very negative."""
    first = seen[0]
    if first.is_complex():
        return "other"
    if first.dtype is torch.bool:
        return "mask"
    is_whole = not first.is_floating_point()
    if (
        first.dim()
        and all(((x == 0) | (x == 1)).all() for x in seen)
        and (is_whole or any((x == 1).any() for x in seen))
    ):
        return "mask"
    if not is_whole and first.dim() and any((x <= _MASKED).any() for x in seen):
        return "mask" if all(((x == 0) | (x <= _MASKED)).all() for x in seen) else "float"
    return "integer" if is_whole else "float"


def _ends(seen: Sequence[Tensor]) -> _Ends:
    """Return the least and the largest finite value."""
    if seen[0].is_complex() or seen[0].dtype is torch.bool:
        return 0, 1
    found = [x[x.isfinite()] if x.is_floating_point() else x for x in seen]
    ends = [x.aminmax() for x in found if x.numel()]
    return (min(low.item() for low, _ in ends), max(high.item() for _, high in ends)) if ends else (0, 0)


def _padded(rows: Sequence[_Row], x: Tensor, _: int, ends: _Ends) -> Tensor:
    """Return a mask whose rows, along the last dimension, keep the places that `rows` names in turn."""
    kept, dropped = (0.0, ends[0]) if ends[0] <= _MASKED else (1, 0)
    if x.is_floating_point() and bool((x == -torch.inf).any()):
        kept, dropped = 0.0, -torch.inf
    length = x.shape[-1]
    flat = torch.full_like(x, dropped).reshape(-1, length)
    for i, row in enumerate(flat):
        place = rows[i % len(rows)]
        first, end = (i % length, i % length + 1) if place is None else (int(place[0] * length), int(place[1] * length))
        row[first:end] = kept
    return flat.reshape(x.shape)


def _exchanged(given: Tensors, kinds: Sequence[str]) -> Iterator[Unseen]:
    """Yield inputs of one kind, dtype and shape in each other's place, as positions of queries and of keys."""
    others = list(given)
    for i, x in enumerate(given):
        alike = [j for j, y in enumerate(given) if (y.dtype, y.shape, kinds[j]) == (x.dtype, x.shape, kinds[i])]
        others[i] = given[alike[(alike.index(i) + 1) % len(alike)]]
    if any(a is not b for a, b in zip(given, others, strict=True)):
        yield Unseen("inputs of one shape exchanged", tuple(others), is_usual=True)


def _shuffled(x: Tensor, i: int, _: _Ends) -> Tensor:
    return shuffled(x, _generator(i))


def _at(x: Tensor, _: int, ends: _Ends) -> Tensor:
    """Return a tensor that holds the ends of what was seen, in random order."""
    is_high = torch.rand(x.shape, generator=_generator(0)).to(x.device) < 0.5
    return torch.where(is_high, torch.full_like(x, int(ends[1])), torch.full_like(x, int(ends[0])))


def _rounded(x: Tensor, _: int, ends: _Ends) -> Tensor:
    step = (ends[1] - ends[0]) / _FEW
    return (((x - ends[0]) / step).round() * step + ends[0]).to(x.dtype) if step else x


def _negated(x: Tensor, _: int, __: _Ends) -> Tensor:
    return -x - 3 if x.dtype.is_signed else x


def _large(x: Tensor, i: int, _: _Ends) -> Tensor:
    """Return integers from the whole range of 8 and 16 bits; from about 2^40 in 64 bits, and 2^30 in 32."""
    info = torch.iinfo(x.dtype)
    low, high = (info.min, info.max + 1) if info.bits < 32 else (0, 2 ** {32: 30}.get(info.bits, 40))
    return torch.randint(low, high, x.shape, generator=_generator(i)).to(x)


def _extreme(which: int, x: Tensor, _: int, __: _Ends) -> Tensor:
    info = torch.iinfo(x.dtype)
    other = x.clone()
    other.view(-1)[::2] = (info.min, info.max)[which]
    return other


_CHANGES: tuple[tuple[str, str, _Change, bool], ...] = (  # in words, of which kind, how, and whether it is usual
    ("integers shuffled", "integer", _shuffled, True),
    ("integers at the ends of those seen", "integer", _at, True),
    ("floats dealt to other samples", "float", lambda x, _, __: x.roll(1, 0) if x.dim() else x, True),
    ("floats shuffled", "float", _shuffled, False),
    ("floats rounded", "float", _rounded, False),
    ("floats negated", "float", lambda x, _, __: -x, False),
    ("floats scaled", "float", lambda x, _, __: x * _SCALE, False),
    ("floats shifted", "float", lambda x, _, ends: x + (ends[1] - ends[0]), False),
    ("integers negated", "integer", _negated, False),
    ("large integers", "integer", _large, False),
)


def _resized(batches: Sequence[Sequence[Tensor]], signature: Signature) -> Iterator[Unseen]:
    """Yield inputs of other sizes: dimensions that always had one size among themselves change together."""
    for sizes, group in free_dimensions(signature, batches).items():
        size = sizes[0]
        what = ", ".join(f"{dim} of input {i}" for i, dim in group)
        for other in (size // 2, size + 1):
            if other < 2 or other in sizes:
                continue
            tensors = list(batches[0])
            for i, dim in group:
                order = torch.arange(other, device=tensors[i].device) % size
                tensors[i] = tensors[i].index_select(dim, order)
            yield Unseen(f"{other} in place of {size} as size {what}", tuple(tensors), is_usual=True)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 17)
