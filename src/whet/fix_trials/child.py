"""Run a training script in this process for some steps, and record each step's time and loss, and the peak memory."""

import runpy
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from whet.errors import TargetError
from whet.measure.load import Load, meter
from whet.measure.memory import cuda_peak_bytes, peak_rss_bytes
from whet.step_profiler.log import StepRecord
from whet.step_profiler.patches import Patches, patched
from whet.step_profiler.run import LoopStoppedError
from whet.step_profiler.watch import watch_everything
from whet.workload.training import seed_everything

_LEAST_STEPS = 7
_BLOCK_S = 0.1  # between two readings of the load, which take less than a thousandth of it
_ENOUGH_S = 5.0  # slow steps need no large number: their times scatter less


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
    stop = _Stop(num_steps, limit_s)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    report = None
    with patched(stop.listen), watch_everything(stop, with_memory=False) as steps:
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
    if not stop.seconds:
        raise TargetError(
            f"{Path(script).name} made no two optimiser steps; give it arguments with which it trains a few steps"
        )
    return {
        "seconds": stop.seconds,
        "losses": stop.losses,
        "blocks": [{"num_steps": num, "load": asdict(load)} for num, load in stop.blocks],
        "report": asdict(report),
        "peak_bytes": peak_rss_bytes(),
        "cuda_peak_bytes": cuda_peak_bytes(),
    }


class _Stop:
    """Note each step, and raise once there are enough steps or the time is over."""

    def __init__(self, num_steps: int, limit_s: float) -> None:
        self.seconds: list[float] = []
        self.losses: list[float | None] = []
        self.blocks: list[tuple[int, Load]] = []  # how many steps, and the load beside them
        self._read = meter()
        self._reading = self._read()
        self._num_steps = num_steps
        self._ends = time.monotonic() + limit_s
        self._began = 0.0
        self._sum: Tensor | float | None = None
        self._scales: WeakKeyDictionary[Tensor, float] = WeakKeyDictionary()

    def __call__(self, record: StepRecord) -> None:
        self.seconds.append(record.seconds)
        self.losses.append(None if self._sum is None else float(self._sum))
        self._sum = None
        now = time.monotonic()
        is_over = self._is_over(now)
        if is_over or time.perf_counter() - self._reading.at_s >= _BLOCK_S:
            self._end_block()
        if is_over:
            raise LoopStoppedError

    def _is_over(self, now: float) -> bool:
        self._began = self._began or now
        is_enough = len(self.seconds) >= _LEAST_STEPS and now - self._began > _ENOUGH_S
        return len(self.seconds) >= self._num_steps or is_enough or now > self._ends

    def _end_block(self) -> None:
        """Note the load beside the steps since the last reading."""
        reading = self._read()
        num_before = sum(num for num, _ in self.blocks)
        self.blocks.append((len(self.seconds) - num_before, self._reading.until(reading)))
        self._reading = reading

    def listen(self, patches: Patches) -> None:
        """Record the loss of every backward pass, and the factor by which a gradient scaler multiplied it."""
        backward, scale = torch.autograd.backward, torch.amp.GradScaler.scale

        def heard(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
                if tensor.numel() == 1:
                    value = tensor.detach() / self._scales.get(tensor, 1.0)
                    self._sum = value if self._sum is None else self._sum + value
            return backward(tensors, *args, **kwargs)

        def scaled(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            if isinstance(result, Tensor):
                self._scales[result] = scaler.get_scale()
            return result

        patches.set(torch.autograd, "backward", heard)
        patches.set(torch.amp.GradScaler, "scale", scaled)
