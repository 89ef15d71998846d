"""What runs in a process of the finals: one variant alone, timed. It imports no technique, so that what it holds in
memory is what serving the variant takes."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from whet.artefact import Artefact, load
from whet.comparison.child import run_alone
from whet.measure.clock import use_device_of
from whet.signature import FlatModel
from whet.workload import Subject, examine
from whet.workload.measurables import ModelCalls
from whet.workloads.handover import open_target

INPUTS = "inputs.safetensors"


def measure_finalist(
    target: str,
    directory: str | None,
    inputs: str,
    budget_s: float,
    num_threads: int | None = None,
    libraries: Sequence[str] = (),
    places: Sequence[str] = (),
) -> dict[str, Any]:
    """Time one variant alone in this process, and the most memory the process held.

    directory: the artefact; None measures the original as `target` builds it. num_threads: what the target's code
    leaves PyTorch with; an artefact, which runs none of that code, starts from as many. libraries, places: as for
    load_with.
    """
    if directory is None:
        workload = open_target(target)
        first = replace(workload, calibration=tuple(workload.inputs[:1]))
        subject = examine(first, with_quality=False, with_behaviour=False)
        run: Callable[..., Any] = FlatModel(workload.model, subject.signature).eval()
        batches = subject.flat_inputs
    else:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        run = load_with(directory, libraries, places).run
        batches = read_inputs(Path(inputs))
    return time_alone(run, batches, budget_s)


def time_alone(run: Callable[..., Any], batches: Sequence[Sequence[Tensor]], budget_s: float) -> dict[str, Any]:
    """Time a variant on flat batches, with nothing else at work in this process. Returns a Run as JSON."""
    calls = ModelCalls([partial(run, *batch) for batch in batches])
    return run_alone(calls, budget_s).model_dump(mode="json")


def load_with(directory: str, libraries: Sequence[str], places: Sequence[str] = ()) -> Artefact:
    """Load an artefact with the libraries for its custom operators, whose modules are also looked for in `places`."""
    if libraries:
        sys.path.extend(place for place in places if place not in sys.path)
    return load(directory, libraries=libraries)


def write_inputs(subject: Subject, path: Path) -> None:
    """The flat inputs of every batch, named batch.position; the metadata hold each one's device."""
    named = {
        f"{i}.{j}": t.contiguous().clone() for i, flat in enumerate(subject.flat_inputs) for j, t in enumerate(flat)
    }
    save_file(named, path, metadata={name: str(tensor.device) for name, tensor in named.items()})


def read_inputs(path: Path) -> list[tuple[Tensor, ...]]:
    """What write_inputs wrote, on the devices it was on."""
    batches: dict[int, dict[int, Tensor]] = {}
    with safe_open(path, framework="pt") as file:
        for name, device in file.metadata().items():
            i, j = map(int, name.split("."))
            tensor = batches.setdefault(i, {})[j] = file.get_tensor(name).to(device)
            use_device_of(tensor)
    return [tuple(batch[j] for j in sorted(batch)) for _, batch in sorted(batches.items())]
