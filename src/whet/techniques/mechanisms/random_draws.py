"""Find out whether a data set draws random numbers while it is read."""

import random
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from whet.core.workload.training import States, generator_states, kept_generators, seed_everything

_NUM_READS = 3
_MOST_OBJECTS = 2_000  # of a data set that are looked through for generators
_OWN = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


@dataclass(frozen=True)
class Sample:
    """Say what reading the first sample of a data set showed.

    Attributes:
        error: Why it could not be read; "" where it could.
        draws: Whether the read drew from the generators of Python, NumPy or PyTorch.
        is_same: Whether every read gave the same.
        num_bytes: The bytes of its tensors.
        is_on_gpu: Whether one of them lies on a GPU.
    """

    error: str = ""
    draws: bool = False
    is_same: bool = True
    num_bytes: int = 0
    is_on_gpu: bool = False


_READ: "weakref.WeakKeyDictionary[DataLoader[Any], Sample]" = weakref.WeakKeyDictionary()


def first_sample(loader: DataLoader[Any]) -> Sample:
    """Read and collate the first sample of a loader a few times, from several seeds, and say what that showed.

    The loader must be over a data set whose samples have numbers. A loader is read once only. The generators go on
    where they were. The samplers are not touched.
    """
    if loader not in _READ:
        try:
            _READ[loader] = _read(loader)
        except Exception as error:  # noqa: BLE001 - a data set may raise anything
            _READ[loader] = Sample(error=repr(error))
    return _READ[loader]


def _read(loader: DataLoader[Any]) -> Sample:
    reads, draws = [], False
    with kept_generators():
        for seed in range(_NUM_READS):
            seed_everything(seed)
            before = generator_states()
            reads.append(_collated(loader))
            draws = draws or not same_states(before, generator_states())
    tensors = [x for x in tree_leaves(reads[0]) if isinstance(x, Tensor)]
    return Sample(
        draws=draws,
        is_same=all(_is_equal(reads[0], other) for other in reads[1:]),
        num_bytes=sum(x.nbytes for x in tensors),
        is_on_gpu=any(x.is_cuda for x in tensors),
    )


def _collated(loader: DataLoader[Any]) -> Any:
    """Return the first sample, fetched and collated as the loader does."""
    data: Any = loader.dataset
    if loader.batch_sampler is None:
        return loader.collate_fn(data[0])
    return loader.collate_fn(data.__getitems__([0]) if hasattr(data, "__getitems__") else [data[0]])


def same_states(first: States, second: States) -> bool:
    """Return whether the generators of Python, NumPy and PyTorch stand where they stood."""
    (kind, keys, *rest), (other_kind, other_keys, *other_rest) = first[1], second[1]
    return (
        first[0] == second[0]
        and (kind, rest) == (other_kind, other_rest)
        and np.array_equal(keys, other_keys)
        and torch.equal(first[2], second[2])
    )


def holds_generator(data: object) -> bool:
    """Return whether an object, or what its attributes and containers hold, has a random generator."""
    seen: set[int] = set()
    waiting = [data]
    while waiting and len(seen) < _MOST_OBJECTS:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, _OWN):
            return True
        if isinstance(one, list | tuple | set | frozenset):
            waiting += list(one)[:_MOST_OBJECTS]
        elif isinstance(one, dict):
            waiting += list(one.values())[:_MOST_OBJECTS]
        elif hasattr(one, "__dict__") and not isinstance(one, Tensor | type):
            waiting += list(vars(one).values())
    return False


def _is_equal(first: Any, second: Any) -> bool:
    mine, theirs = tree_leaves(first), tree_leaves(second)
    return len(mine) == len(theirs) and all(_is_same_leaf(a, b) for a, b in zip(mine, theirs, strict=True))


def _is_same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    if type(a) is not type(b):
        return False
    # An object without an equality of its own is equal to nothing else, so only its kind can be compared.
    has_own = any("__eq__" in vars(kind) for kind in type(a).__mro__ if kind is not object)
    return not has_own or bool(a == b)
