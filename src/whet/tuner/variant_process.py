"""Time one variant alone, in a process of the final comparison.

This module imports no technique, so that the process holds in memory only what serving the variant takes.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor

from whet.comparison.child import run_alone
from whet.comparison.run import Run
from whet.core.artefact import Artefact, load
from whet.core.signature import FlatModel, Signature, split
from whet.core.workload.measurables import ModelCalls
from whet.measure.device import use_device_of
from whet.tuner.known_target import read_inputs
from whet.workloads.target import open_target


class LoadRequest(BaseModel, frozen=True):
    """Tell a process that has none of the target's code how to load an artefact, and on what to run it.

    Attributes:
        inputs: The file of flat inputs.
        num_threads: The number of PyTorch's threads that the target's code leaves set, for the process to start with;
            None leaves the number as it is.
        libraries: What registers the artefact's custom operators.
        sys_path: Directories that are searched for modules after those of this process.
    """

    inputs: Path
    num_threads: int | None = None
    libraries: tuple[str, ...] = ()
    sys_path: tuple[str, ...] = ()

    def load(self, directory: Path) -> Artefact:
        if self.num_threads is not None:
            torch.set_num_threads(self.num_threads)
        if self.libraries:
            sys.path.extend(place for place in self.sys_path if place not in sys.path)
        return load(directory, libraries=self.libraries)


class VariantRequest(LoadRequest, frozen=True):
    """Tell a process what to time: an artefact, or the original, for which it runs the target's code.

    Attributes:
        budget_s: Seconds of timing.
        target: The target's name or address; the original is built from it.
        signature: The original's input and output tensors.
        directory: The artefact; None times the original.
    """

    budget_s: float
    target: str = ""
    signature: Signature | None = None
    directory: Path | None = None


def measure_variant(request: VariantRequest) -> Run:
    """Time one variant alone in this process, and measure the process's peak memory."""
    if request.directory is None:
        assert request.signature is not None
        workload = open_target(request.target)
        signature = request.signature
        run: Callable[..., Any] = FlatModel(workload.model.eval(), signature).eval()
        batches = [signature.flatten(*split(batch)) for batch in workload.inputs]
        for tensor in batches[0][:1]:
            use_device_of(tensor)
    else:
        run = request.load(request.directory).run
        batches = read_inputs(request.inputs)
    return time_alone(run, batches, request.budget_s)


def time_alone(run: Callable[..., Any], batches: Sequence[Sequence[Tensor]], budget_s: float) -> Run:
    """Time a variant on flat batches, while nothing else runs in this process."""
    return run_alone(ModelCalls([partial(run, *batch) for batch in batches]), budget_s)
