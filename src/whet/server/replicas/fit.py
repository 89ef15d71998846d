"""Check before anything is loaded that cores and memory are enough for several replicas, and divide them."""

from dataclasses import replace

from whet.errors import OptionError
from whet.measure.cgroup import free_memory
from whet.measure.cores import allowed_cores, core_shares
from whet.server.asked import Asked
from whet.server.replicas.needs import Needs
from whet.ui.figures import num_bytes


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


def shares_weights(asked: Asked, needs: Needs) -> bool:
    """Return whether replicas share weights: those of language models that one process computes alone."""
    return needs.num_engines > 0 and asked.options.tensor_parallel_size == 1


def fitted(asked: Asked, number: int, needs: Needs, available: int | None = None) -> Asked:
    """Return what each of so many replicas is asked to serve: a share of the memory where none is stated.

    Args:
        needs: What they take. Weights count once where `asked` names a directory to share them.
        available: The bytes that are free; those that are free now where it is not given.

    Raises:
        OptionError: The memory does not hold so many.
    """
    if available is None:
        available = free_memory()
    stated = asked.options.memory or 0
    once, each = needs.weights_bytes, needs.private_bytes + needs.num_engines * stated
    if asked.options.shared_weights is None:
        once, each = 0, each + once
    if once + number * each > available:
        most = max(0, available - once) // each
        what = f"{most} at most" if most else "not even one"
        weights = f", and {num_bytes(once)} for the weights that they share" if once else ""
        raise OptionError(
            f"--replicas {number}: each needs at least {num_bytes(each)} of memory{weights}. {num_bytes(available)} "
            f"are free: take {what}, fewer bits (--weights int8 or int4), or less --memory"
        )
    if stated or not needs.num_engines:
        return asked
    # As one server takes a quarter of what is free, all replicas together take a quarter of what is left.
    left = available - once - number * each
    return replace(asked, options=replace(asked.options, memory=max(1, left // 4 // number // needs.num_engines)))
