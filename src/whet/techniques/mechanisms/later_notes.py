"""Say what techniques find out only while the loop runs, as that they changed nothing."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from whet.techniques.mechanisms.parts import Parts

NUM_STEPS = 8  # optimiser steps after which it is said


def all_notes(parts: Parts) -> tuple[str, ...]:
    """Return what the techniques want to be said of parts, and what they have found out so far."""
    return (*parts.notes, *(note for note in (ask() for ask in parts.later_notes) if note))


def tell_later(parts: Parts, tell: Callable[[str], None]) -> None:
    """Tell what the techniques of changed parts have found out, once the optimiser has made 8 steps."""
    if not parts.later_notes:
        return
    num_steps = 0

    def after_step(_: Optimizer, *__: Any) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps == NUM_STEPS:
            handle.remove()
            for note in (ask() for ask in parts.later_notes):
                if note:
                    tell(note)

    handle = parts.optimizer.register_step_post_hook(after_step)
