"""Run `whet train` of one kind of training after the other, in one process or as a part of several."""

import os
from pathlib import Path
from typing import Any

from rank_runs import log


def each(files: dict[str, str], plans: list[str], group: str | None) -> dict[str, Any]:
    """Return the figures of each configuration under each plan, or the error that refused it.

    Args:
        files: Configurations by name.
        plans: Changes of the configuration, as "parallel.zero_stage=2".
        group: A file's name for the meeting places of the processes; None for one process.
    """
    from whet.errors import WhetError
    from whet.measure.isolate import RENDEZVOUS
    from whet.trainer.train import train

    found: dict[str, Any] = {}
    for name, file in files.items():
        for plan in plans:
            out = Path(file).parent / f"{name} {plan} {group is None}"
            if group is not None:
                os.environ[RENDEZVOUS] = f"file://{group}-{name}-{plan}"
            changes = [f"out={out}", *([plan] if group is not None else [])]
            try:
                train(file, changes, say=lambda text: None)
                found[f"{name} {plan}"] = log(out)
            except WhetError as error:
                found[f"{name} {plan}"] = str(error)
    return found
