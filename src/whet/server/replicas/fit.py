"""Check before anything is loaded that cores and memory are enough for several replicas, and divide them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from whet.core.recipe_file import FILE as RECIPE
from whet.errors import OptionError
from whet.measure.cgroup import memory_limit
from whet.measure.cores import allowed_cores, core_shares
from whet.server.asked import Asked
from whet.ui.figures import num_bytes
from whet.workloads.model_directory import model_directory

_PROCESS = 350 * 2**20  # bytes that a replica takes beside its weights: an interpreter with torch
_BYTES = {"bf16": 2.0, "fp32": 4.0, "int8": 1.0, "int4": 0.5}  # at least, of one weight
_LONGEST_HEADER = 100 * 2**20


def shares_of_cores(number: int) -> list[tuple[int, ...]]:
    """Divide this process's cores among so many replicas.

    Raises:
        OptionError: There are fewer cores, or it is no number of replicas.
    """
    cores = allowed_cores()
    if number < 1:
        raise OptionError(f"--replicas {number}: at least 1")
    if number > len(cores):
        has = "1 core" if len(cores) == 1 else f"{len(cores)} cores"
        raise OptionError(f"--replicas {number}: each replica needs a core of its own, and this process may use {has}")
    return core_shares(number, cores)


def fitted(asked: Asked, number: int, available: int | None = None) -> Asked:
    """Return what each of so many replicas is asked to serve: a share of the memory where none is stated.

    Args:
        available: The bytes that are free; those that are free now where it is not given.

    Raises:
        OptionError: The memory does not hold so many.
        TargetError: A directory is missing.
    """
    if available is None:
        free: int = psutil.virtual_memory().available
        limit = memory_limit()
        available = free if limit is None else min(free, limit)
    stated = asked.options.memory or 0
    each = _PROCESS + int(sum(_least_bytes(asked, one) for one in _directories(asked))) + stated
    if number * each > available:
        most = available // each
        what = "not even one" if not most else f"{most} at most"
        raise OptionError(
            f"--replicas {number}: each needs at least {num_bytes(each)} of memory, and {num_bytes(available)} are "
            f"free: take {what}, fewer bits (--weights int8 or int4), or less --memory"
        )
    if stated:
        return asked
    # As one server takes a quarter of what is free, all replicas together take a quarter of what is left.
    return replace(asked, options=replace(asked.options, memory=max(1, (available - number * each) // 4 // number)))


def _directories(asked: Asked) -> Iterator[Path]:
    for named in ((asked.model,) if asked.model is not None else ()) + tuple(asked.models.values()):
        yield model_directory(named)
    if asked.draft is not None:
        yield model_directory(asked.draft)


def _least_bytes(asked: Asked, directory: Path) -> float:
    """Return how many bytes the weights in a directory take at least, once they are loaded."""
    files = sorted(directory.glob("*.safetensors"))
    if not files or not (directory / "config.json").is_file():
        return 0.0 if files else float(sum(path.stat().st_size for path in directory.rglob("*.pt2")))
    says_more = asked.recipe is not None or (directory / RECIPE).is_file()
    weights = asked.weights or ("int4" if says_more else asked.options.weights)
    kind = weights if weights != "as-is" else asked.dtype or asked.options.dtype
    return sum(map(_num_weights, files)) * _BYTES[kind]


def _num_weights(path: Path) -> int:
    """Return how many numbers a safetensors file holds; 0 where it is damaged, which its reader says better."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < _LONGEST_HEADER else {}
        total = 0
        for name, one in header.items():
            if name != "__metadata__":
                size = 1
                for extent in one["shape"]:
                    size *= extent
                total += size
        return total
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
