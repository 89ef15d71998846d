"""Name the largest tensors that are alive, and what a loop leaks, with what holds them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from whet.profiling.model.allocations import AllocationTracker
from whet.profiling.model.leaks import LEAST_STEPS, Leak, is_significant, leak_of, surviving_allocations
from whet.profiling.model.referrers import LiveTensor, largest, live_objects, names_of, referrer_of


def inspect_memory(
    tracker: AllocationTracker, named: Mapping[int, str] = MappingProxyType({})
) -> tuple[tuple[LiveTensor, ...], tuple[Leak, ...] | None]:
    """Find the largest storages that are alive, and what leaks; None instead of the leaks after too few steps to tell.

    Leaks that keep an autograd graph come first, because they hold all tensors of the graph. `named` holds names that
    the caller knows, by storage key.
    """
    alive = tracker.alive()
    objects = live_objects()
    live = largest(alive, {**names_of(objects), **named})
    if tracker.num_steps < LEAST_STEPS:
        return live, None
    leaks = []
    for surviving in surviving_allocations(alive, tracker.num_steps):
        tensors = [t for a in surviving.allocations for t in objects.tensors.get(a.key, [])]
        held_by = _referrer(tensors, ignore=[tensors, *objects.tensors.values()])
        keeps_graph = bool(held_by) and any(tensor.grad_fn is not None for tensor in tensors)
        if not is_significant(surviving, tracker.num_steps, keeps_graph=keeps_graph):
            continue
        leaks.append(leak_of(surviving, tracker.num_steps, held_by=held_by, keeps_graph=keeps_graph))
    return live, tuple(sorted(leaks, key=lambda leak: (not leak.keeps_graph, not leak.held_by, -leak.kept_bytes)))


def _referrer(tensors: Sequence[Tensor], ignore: Sequence[object]) -> str:
    """Describe what holds these tensors.

    A list may keep some tensors of a line, and autograd others, so one tensor of each shape is checked.
    """
    asked = {tuple(tensor.shape): tensor for tensor in reversed(tensors)}
    mine = [*ignore, asked]
    return next((held_by for tensor in asked.values() if (held_by := referrer_of(tensor, ignore=mine))), "")
