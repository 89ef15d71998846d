"""Decide which checkpoints are kept."""

from collections.abc import Sequence
from pathlib import Path

from whet.trainer.checkpoints.manifest import SavedStep


def superseded(saved: Sequence[SavedStep], *, keep: int, keep_every: int | None) -> list[Path]:
    """Return the checkpoints that are kept no longer.

    Kept are the newest ones, those of every so many steps, and those that are pinned. Where a step was saved more than
    once, only the newest of these counts.

    Args:
        saved: Whole checkpoints. Damaged ones neither count nor are removed.
        keep_every: Steps that are multiples of it are kept for ever; None for no such step.
    """
    gone = []
    steps: set[int] = set()
    num_newest = 0
    for one in sorted(saved, key=lambda one: one.number, reverse=True):
        is_repeated = one.step in steps
        steps.add(one.step)
        num_newest += not is_repeated
        is_kept = num_newest <= keep or (keep_every is not None and one.step % keep_every == 0)
        if not one.is_pinned and (is_repeated or not is_kept):
            gone.append(one.path)
    return gone
