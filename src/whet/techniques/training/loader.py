"""Read and collate the batches of a DataLoader in worker processes.

What            A DataLoader with workers over the same data set, samplers and collate function. They may stay from pass
                to pass; on a GPU, batches may be pinned.
When it helps   A step waits for its data, and there are cores that the step does not use, or reading waits itself.
When it hurts   Few cores: workers that compute take them from the step. Batches pass through shared memory. Each worker
                has a copy of what the data set holds.
Numerics        The same batches in the same order, in every pass. A data set that draws random numbers is refused:
                workers would draw others.
Composes        With everything; prefetch gains little after it. The workers are started as Python starts processes, so
                where that is not by a fork, the data set must be picklable.
Source          PyTorch documentation, torch.utils.data, "Multi-process data loading".
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.random_draws import first_sample, holds_generator
from whet.techniques.mechanisms.uses import OWN_LOADER
from whet.techniques.mechanisms.worker_loader import WorkerLoader, with_workers
from whet.techniques.technique import Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {
    "num_workers": (1, 2, 4, 8),
    "prefetch_factor": (2, 4),
    "persistent_workers": (True, False),
    "pin_memory": (False, True),
}
_MOST_PER_CORE = 4  # workers: more than one for each core gain where they wait for a disk or a network
_SHARED_MEMORY = Path("/dev/shm")  # where workers lay their batches on Linux


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of loader.

    Attributes:
        num_workers: Worker processes, 1 or more.
        prefetch_factor: Batches that each worker reads ahead.
        persistent_workers: Whether the workers stay from pass to pass.
        pin_memory: Whether batches are laid into pinned memory, from which copies to a GPU are fast.
    """

    num_workers: int = _SPACE["num_workers"][0]
    prefetch_factor: int = _SPACE["prefetch_factor"][0]
    persistent_workers: bool = _SPACE["persistent_workers"][0]
    pin_memory: bool = _SPACE["pin_memory"][0]


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that the batches come from a DataLoader whose samples can be read in another process."""
    loader = parts.batches
    if type(loader) not in (DataLoader, WorkerLoader):
        return NotApplicable(f"the batches come from a {type(loader).__name__}, not from a torch DataLoader")
    assert isinstance(loader, DataLoader)
    if not 1 <= options.num_workers <= _MOST_PER_CORE * machine.cores:
        return NotApplicable(
            f"{options.num_workers} workers for {machine.cores} cores; the most are {_MOST_PER_CORE} for each core, "
            "which gain where reading waits"
        )
    if options.prefetch_factor < 1:
        return NotApplicable(f"prefetch_factor must be 1 or more; it is {options.prefetch_factor}")
    if options.pin_memory and parts.device_type != "cuda":
        return NotApplicable("pinned memory helps copies to a GPU, and the model is on the CPU")
    if loader.persistent_workers and not options.persistent_workers:
        return NotApplicable("workers that end draw a seed in each pass, which would change the order of the data")
    if all(getattr(loader, name) == value for name, value in vars(options).items()):
        return NotApplicable("the loader has these settings already")
    if why := _why_not_in_workers(loader, options):
        return NotApplicable(why)
    return Applies(f"{options.num_workers} in place of {loader.num_workers} workers")


def _why_not_in_workers(loader: DataLoader[Any], options: Options) -> str:
    """Return why workers would give other batches or none; "" where they give the same."""
    if isinstance(loader.dataset, IterableDataset):
        return "the data set is iterable: each worker would repeat all of it"
    if holds_generator([loader.dataset, loader.collate_fn]):
        return "the data set holds a random generator of its own, which each worker would copy"
    sample = first_sample(loader)
    if sample.error:
        return f"sample 0 cannot be read to see whether it draws random numbers: {sample.error}"
    if sample.draws:
        return "the data set or its collate_fn draws random numbers, and workers would draw others"
    if not sample.is_same:
        return "two reads of one sample differ, so that samples depend on what was read before"
    if sample.is_on_gpu:
        return "the samples lie on a GPU, which forked workers cannot use"
    batch_bytes = sample.num_bytes * (loader.batch_size or 1)
    ahead = options.num_workers * options.prefetch_factor + 1
    if _SHARED_MEMORY.is_dir() and ahead * batch_bytes > shutil.disk_usage(_SHARED_MEMORY).free:
        return f"{ahead} batches of {batch_bytes / 1e6:.0f} MB do not fit into the free part of {_SHARED_MEMORY}"
    return ""


def predict(profile: StepProfile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup: the workers share the reading, and run beside the step."""
    rest_s = profile.total_s - profile.data_s
    return profile.bound(data_s=max(0.0, profile.data_s / options.num_workers - rest_s))


def apply(parts: Parts, options: Options) -> Parts:
    assert isinstance(parts.batches, DataLoader)
    return replace(parts, batches=with_workers(parts.batches, **vars(options)))


TECHNIQUE = TrainingTechnique(
    name="loader",
    stage=TrainingStage.RUNTIME,
    order=20,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    predict=predict,
    apply=apply,
    space=_SPACE,
    changes_batches=True,
    refuses=OWN_LOADER,
)
