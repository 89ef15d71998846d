"""What processes do in the tests of runs whose layers several processes share."""

from typing import Any

import torch

from whet.parallel.division import division_of
from whet.parallel.ranks import Ranks
from whet.trainer.config import checked_config
from whet.trainer.loop import run
from whet.trainer.setup import set_up


def runs(ranks: Ranks, work: list[tuple[dict[str, Any], bool]]) -> list[int]:
    """Do the runs of configurations one after the other, each with whether it goes on, and return their steps."""
    found = []
    for tables, resume in work:
        config = checked_config(tables, "test")
        division = division_of(config.parallel, ranks, torch.device("cpu"))
        found.append(run(set_up(config, _quiet), resume=resume, say=_quiet, division=division).step)
    return found


def _quiet(line: str) -> None:
    """Say nothing."""
