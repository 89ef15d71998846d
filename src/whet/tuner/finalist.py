"""What runs in a process of the finals: one variant alone, timed. It imports no technique, so that what it holds in
memory is what serving the variant takes."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from whet.artefact import Artefact, load
from whet.artefact.operators import load_libraries
from whet.measure.clock import measure_calls, use_device_of
from whet.measure.memory import cuda_peak_bytes, live_tensor_bytes, peak_rss_bytes
from whet.signature import FlatModel
from whet.workload import Subject, Workload, examine
from whet.workloads import resolve

PICKLED = "pickled:"  # a workload handed over in memory, in a file that the parent has just written
SURROUNDINGS = "surroundings.json"  # beside it: where its code is imported from, and the threads it is run by
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
    """Time a variant on flat batches, with nothing else at work in this process; and its memory in bytes."""
    measurement = measure_calls([partial(run, *batch) for batch in batches], budget_s=budget_s)
    return {
        "latency_ms": measurement.latency_ms,
        "p90_ms": measurement.p90_ms,
        "num_calls": len(measurement.samples_s),
        "busy": measurement.cause,
        "load": asdict(measurement.load),
        "peak_bytes": peak_rss_bytes(),
        "live_tensor_bytes": live_tensor_bytes(),
        "cuda_peak_bytes": cuda_peak_bytes(),
    }


def load_with(directory: str, libraries: Sequence[str], places: Sequence[str] = ()) -> Artefact:
    """Load an artefact with the libraries for its custom operators, whose modules are also looked for in `places`."""
    if libraries:
        sys.path.extend(place for place in places if place not in sys.path)
    return load(directory, libraries=libraries)


def open_target(target: str) -> Workload:
    """A target's workload; one handed over in memory comes from the file its parent wrote."""
    if target.startswith(PICKLED):
        path = Path(target.removeprefix(PICKLED))
        surroundings = json.loads((path.parent / SURROUNDINGS).read_text(encoding="utf-8"))
        torch.set_num_threads(surroundings["num_threads"])
        places = surroundings["sys_path"]
        sys.path[:] = [*places, *(place for place in sys.path if place not in places)]
        load_libraries(surroundings["libraries"])
        workload: Workload = torch.load(path, weights_only=False)
        return workload
    return resolve(target)


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
