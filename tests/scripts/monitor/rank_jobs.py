"""What processes do in the tests of monitors of several ranks: one works longer, and the others wait for it."""

import os
import time
from typing import Any

import torch
from torch import distributed, nn

from whet.parallel.ranks import Ranks
from whet.scripts.monitor.monitor import Monitor

SLOW_S = 0.03
SHARE = 0.5


def watched(ranks: Ranks, slow_rank: int) -> dict[str, Any]:
    """Train with a monitor on each rank, and return what this one's knows in the end."""
    os.environ.update({"RANK": str(ranks.rank), "WORLD_SIZE": str(ranks.world_size)})
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor("run", port=0, show=False, interval_s=0.1, share=SHARE) as monitor:
        for _ in range(25):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            time.sleep(SLOW_S if ranks.rank == slow_rank else 0)
            for parameter in model.parameters():
                distributed.all_reduce(parameter.grad)
            optimizer.step()
            monitor.step(num_samples=8)
        time.sleep(0.3)  # a last sample of all, before the first one closes
        ranks.gather("the steps' end", None)
        summary = monitor.summary()
        return {
            "url": monitor.url,
            "rows": [vars(row) for row in monitor.run.ranks.rows(whole=True)],
            "straggler": summary.straggler,
        }
