"""What processes do in the tests of comparing them."""

import time
from typing import Any

import torch

from whet.parallel.rank_checkup import checkup
from whet.parallel.ranks import Ranks

AHEAD_S = 7.25


def compared(ranks: Ranks) -> dict[str, Any]:
    """Compare processes of which the second has a clock that is ahead, and more threads."""
    if ranks.rank == 1:
        torch.set_num_threads(2)
    ahead_s = AHEAD_S if ranks.rank == 1 else 0.0
    found = checkup(ranks, torch.device("cpu"), lambda: time.time() + ahead_s)
    return {**found.model_dump(mode="json"), "text": found.text(), "sentence": found.sentence}
