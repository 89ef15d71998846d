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


class VariantRequest(BaseModel, frozen=True):
    """Tell a process what to time.

    Attributes:
        inputs: The file of flat inputs, on which an artefact is timed.
        budget_s: Seconds of timing.
        target: The target's name or address; the original is built from it.
        signature: The original's input and output tensors.
        directory: The artefact; None times the original.
        num_threads: The number of PyTorch's threads that the target's code leaves set. A process with an artefact,
            which runs none of that code, starts with this number; None leaves the number as it is.
        libraries: What registers an artefact's custom operators.
        sys_path: Directories that are searched for modules after those of this process.
    """

    inputs: Path
    budget_s: float
    target: str = ""
    signature: Signature | None = None
    directory: Path | None = None
    num_threads: int | None = None
    libraries: tuple[str, ...] = ()
    sys_path: tuple[str, ...] = ()


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
        if request.num_threads is not None:
            torch.set_num_threads(request.num_threads)
        run = load_with(request.directory, request.libraries, request.sys_path).run
        batches = read_inputs(request.inputs)
    return time_alone(run, batches, request.budget_s)


def time_alone(run: Callable[..., Any], batches: Sequence[Sequence[Tensor]], budget_s: float) -> Run:
    """Time a variant on flat batches, while nothing else runs in this process."""
    return run_alone(ModelCalls([partial(run, *batch) for batch in batches]), budget_s)


def load_with(directory: Path, libraries: Sequence[str], sys_path: Sequence[str] = ()) -> Artefact:
    """Load an artefact with the libraries for its custom operators, whose modules are also looked for in `sys_path`."""
    if libraries:
        sys.path.extend(place for place in sys_path if place not in sys.path)
    return load(directory, libraries=libraries)
