"""Run a training script in this process for some steps, and record each step's time and loss, and the peak memory."""

import runpy
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from whet.core.workload.training import seed_everything
from whet.errors import TargetError
from whet.measure.memory import cuda_peak_bytes, peak_rss_bytes
from whet.profiling.step.log import StepRecord
from whet.profiling.step.patching import patched
from whet.profiling.step.run import LoopStoppedError
from whet.profiling.step.watch import watch_everything
from whet.scripts.injection.losses import BackwardLosses
from whet.scripts.injection.step_times import StepTimes


def run_script(script: str, arguments: Sequence[str], num_steps: int, limit_s: float, seed: int) -> dict[str, Any]:
    """Run a script as `python script arguments...` would, for `num_steps` optimiser steps, or fewer if they are slow.

    A step's loss is the sum of the losses that backward was called on since the step before, so that accumulated
    micro-batches count as one.

    Returns:
        Seconds and losses by step, the report of the phases, the load beside blocks of steps, and the peak memory in
        bytes. The lists begin with the second step, since watching begins with the first one.

    Raises:
        TargetError: The script makes no optimiser step, or asks for input. Its own exceptions pass through.
    """
    seed_everything(seed)
    losses = BackwardLosses()
    stop = _Stop(num_steps, limit_s, losses)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    report = None
    with patched(losses.listen), watch_everything(stop, with_memory=False) as steps:
        try:
            runpy.run_path(script, run_name="__main__")
        except LoopStoppedError:
            pass
        except EOFError as error:
            raise TargetError(f"{Path(script).name} asks for input; give it all it needs as arguments") from error
        except SystemExit as error:
            if error.code not in (None, 0):
                raise TargetError(
                    f"{Path(script).name} ended itself: {error.code}; give it arguments with which it trains, after --"
                ) from error
        report = steps.report()
    if not stop.times.seconds:
        raise TargetError(
            f"{Path(script).name} made no two optimiser steps; give it arguments with which it trains a few steps"
        )
    return {
        "seconds": stop.times.seconds,
        "losses": stop.losses,
        "blocks": stop.times.blocks_to_json(),
        "report": asdict(report),
        "peak_bytes": peak_rss_bytes(),
        "cuda_peak_bytes": cuda_peak_bytes(),
    }


class _Stop:
    """Note each step and its loss, and raise once there are enough steps or the time is over."""

    def __init__(self, num_steps: int, limit_s: float, losses: BackwardLosses) -> None:
        self.times = StepTimes(num_steps, limit_s)
        self.losses: list[float | None] = []
        self._heard = losses

    def __call__(self, record: StepRecord) -> None:
        loss = self._heard.take()
        self.losses.append(None if loss is None else float(loss))
        if self.times.add(record.seconds):
            raise LoopStoppedError
