"""Fetch the next batches in a thread while the step computes.

What            The loader stays as it is. From the third batch of a pass on, a thread calls it and keeps a few batches
                ready; on a GPU it may copy them there, from pinned memory and on a stream of its own.
When it helps   A step waits for its data, and reading releases Python's lock, as decoding, files and tensors do.
When it hurts   Data in pure Python: thread and loop take turns at Python's lock. Few cores.
Numerics        The same batches in the same order. A loader that draws from the generators of Python, NumPy or PyTorch
                while it is read goes on in the loop's own thread, which gains nothing. The second batch tells;
                where a DataLoader shows it beforehand, the technique is refused. A pass that is left early has read up
                to `depth` batches more, which counts for loaders that go on where they were.
Composes        With everything; gains little where workers read ahead already.
Source          PyTorch documentation, "A guide on good usage of non_blocking and pin_memory()"; NVIDIA apex, the
                data_prefetcher of its ImageNet example.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch.utils.data import DataLoader, IterableDataset

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.prefetching import Prefetched, is_prefetched
from whet.techniques.mechanisms.random_draws import first_sample
from whet.techniques.mechanisms.uses import OWN_LOADER
from whet.techniques.technique import Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {"depth": (2, 4), "copies": (False, True)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of prefetch.

    Attributes:
        depth: The most batches that are ready at a time, 1 or more.
        copies: Whether batches are copied to the model's GPU.
    """

    depth: int = _SPACE["depth"][0]
    copies: bool = _SPACE["copies"][0]


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that batches are made while they are asked for, and that a thread would make the same."""
    loader = parts.batches
    if is_prefetched(loader):
        return NotApplicable("the loader fetches ahead already")
    if options.depth < 1:
        return NotApplicable(f"depth must be 1 or more; it is {options.depth}")
    if options.copies and parts.device_type != "cuda":
        return NotApplicable("batches are copied to a GPU only, and the model is on the CPU")
    if isinstance(loader, Iterator):
        return NotApplicable("the batches are an iterator; a loop that leaves it early would miss what was fetched")
    if isinstance(loader, DataLoader) and loader.num_workers and not options.copies:
        return NotApplicable("the loader's workers read ahead already")
    if isinstance(loader, Sequence) and not options.copies:
        return NotApplicable("the batches lie in memory already")
    is_mapped = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if is_mapped and not loader.num_workers and first_sample(loader).draws:  # type: ignore[attr-defined,arg-type]
        return NotApplicable("the data set or its collate_fn draws random numbers, and a thread would draw others")
    return Applies(f"up to {options.depth} batches ahead" + (", copied to the GPU" if options.copies else ""))


def predict(profile: StepProfile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup: a step takes as long as its data or all the rest, whichever is more."""
    rest_s = profile.total_s - profile.data_s
    return profile.bound(data_s=max(0.0, profile.data_s - rest_s))


def apply(parts: Parts, options: Options) -> Parts:
    device = next(parts.model.parameters()).device if options.copies else None
    return replace(parts, batches=Prefetched(parts.batches, options.depth, device))


TECHNIQUE = TrainingTechnique(
    name="prefetch",
    stage=TrainingStage.RUNTIME,
    order=30,
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
