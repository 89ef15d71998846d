"""What processes do in the tests of whole runs: train as whet train does, and go on from where another run was cut."""

import shutil
from pathlib import Path
from typing import Any

from runs_together import run_with

from whet.parallel.ranks import Ranks
from whet.trainer.config import checked_config

LAST = "step-00000004"  # the checkpoint that a run loses where it is cut


def went(ranks: Ranks, tables: dict[str, Any], cut: str | None = None) -> list[str]:
    """Train from the tables of a configuration, whose text was split into tokens before, and return what was said.

    Args:
        cut: The directory of a run that this one goes on with, as if that had been killed before its last checkpoint.
    """
    config = checked_config(tables, "test")
    if cut is not None:
        ranks.first_does("a copy of a run", lambda: _cut_off(Path(cut), config.out))
    return run_with(ranks, config, resume=cut is not None)[1]


def _cut_off(run: Path, place: Path) -> None:
    shutil.copytree(run, place)
    shutil.rmtree(place / "checkpoints" / LAST)
    shutil.rmtree(place / "model")


def all_went(ranks: Ranks, runs: list[tuple[dict[str, Any], str | None]]) -> list[list[str]]:
    """Train several times, one after the other; see went."""
    return [went(ranks, tables, cut) for tables, cut in runs]
