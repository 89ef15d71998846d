"""Keep a target as its examination left it, so that later processes need not examine it again.

This module imports no technique: a process of the final comparison imports it, and must hold only what serving the
variant takes.
"""

import hashlib
import itertools
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import BaseModel
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from whet.core.scripted import stateless
from whet.core.signature import Signature, output_tensors, split, tensors_of
from whet.core.workload import ExaminedWorkload, InferenceWorkload, examine, is_near
from whet.measure.device import use_device_of
from whet.workloads.target import open_target

INPUTS = "inputs.safetensors"
OUTPUTS = "outputs.pt"
KEPT = "kept"  # the directory of what techniques keep for later processes of the same search

_SAMPLED = 4096  # about how many values of each tensor go into the digest of a target
_MAX_OUTPUT_BYTES = 2**28


class BatchDimension(BaseModel, frozen=True):
    """Describe a target's batch dimension.

    Attributes:
        size: The number of rows of the inputs.
        freed: Positions of the inputs whose first dimension was set free though it never varied.
        reason: Why it is fixed; "" where it is free.
    """

    size: int = 1
    freed: tuple[int, ...] = ()
    reason: str = ""


class FoundOfModel(BaseModel, frozen=True):
    """Hold what an examination found out about a model that later processes need to know.

    Attributes:
        signature: The model's input and output tensors, with the batch dimension free where it may be.
        score: The original's quality; None without one.
        sample_scores: The score of each sample, where the quality gives them.
        effects: What forward does that a graph would leave out, in words.
        shared: Positions of the outputs that share memory with an input, a weight or another output.
        depends_on_grad_mode: Whether the outputs differ while gradients are on.
        content: A digest of the parameters and of all batches, by which a process knows that it built the same target;
            "" where the outputs were not written.
    """

    signature: Signature
    batch: BatchDimension = BatchDimension()
    score: float | None = None
    sample_scores: tuple[float, ...] = ()
    effects: tuple[str, ...] = ()
    shared: tuple[int, ...] = ()
    depends_on_grad_mode: bool = False
    content: str = ""


class KnownTarget(FoundOfModel, frozen=True):
    """Tell a process about a target that was examined before.

    Attributes:
        target: The target's name or address.
        directory: Where the examination wrote the inputs and the original's outputs.
    """

    target: str
    directory: Path

    def open(self) -> ExaminedWorkload:
        """Build the target again and return it as it was examined.

        A target that this process builds differently is examined anew, since its outputs differ too. One that draws its
        weights or inputs without a seed is an example. Its score and signature stay those of the examination.
        """
        workload = open_target(self.target)
        outputs = self._known_outputs(workload)
        if outputs is None:
            examined = replace(examine(workload, with_quality=False, with_effects=False), effects=self.effects)
        else:
            examined = ExaminedWorkload(workload, self.signature, outputs, None, (), self.effects, self.shared)
            examined = replace(examined, depends_on_grad_mode=self.depends_on_grad_mode)
        return replace(
            examined,
            signature=self.signature,
            score=self.score,
            sample_scores=self.sample_scores,
            kept_in=self.directory / KEPT,
        )

    def _known_outputs(self, workload: InferenceWorkload) -> tuple[tuple[Tensor, ...], ...] | None:
        """Return the original's outputs by calibration batch; None where the workload differs from the examined one."""
        model = workload.model.eval()
        for tensor in itertools.islice(tensors_of(workload.inputs[0]), 1):
            use_device_of(tensor)
        outputs = read_outputs(self.directory / OUTPUTS) if self.content else None
        if outputs is None:
            return None
        args, kwargs = split(workload.calibration[0])
        with torch.no_grad(), stateless(model):
            first = output_tensors(model(*args, **kwargs))
        is_same = len(first) == len(outputs[0]) and all(map(is_near, first, outputs[0]))
        return outputs if is_same and digest_of_content(workload) == self.content else None


def digest_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of tensors with their names and values."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in tensors:
        found.update(name.encode())
        found.update(tensor.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def digest_of_content(workload: InferenceWorkload) -> str:
    """Return a digest of a workload's parameters and batches, by a sample of each tensor's values.

    It tells targets apart that were built differently, for example without a seed. A change of single values may go
    unnoticed. Buffers are left out, since some count calls. The model must have been called before, so that lazy
    parameters exist.
    """
    batches = [*workload.inputs, *workload.calibration]
    data = [(f"{i}.{j}", tensor) for i, batch in enumerate(batches) for j, tensor in enumerate(tensors_of(batch))]
    named = itertools.chain(workload.model.named_parameters(), data)
    return digest_of((f"{name} {tuple(tensor.shape)} {tensor.dtype}", _sample(tensor)) for name, tensor in named)


def _sample(tensor: Tensor) -> Tensor:
    """Return a tensor's values at evenly spaced places, 4,096 to 8,191 of them, or all where it has fewer."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLED)]


def write_inputs(examined: ExaminedWorkload, path: Path) -> None:
    """Write the flat inputs of every batch, named batch.position. The metadata hold each tensor's device."""
    named = {
        f"{i}.{j}": t.contiguous().clone() for i, flat in enumerate(examined.flat_inputs) for j, t in enumerate(flat)
    }
    save_file(named, path, metadata={name: str(tensor.device) for name, tensor in named.items()})


def read_inputs(path: Path) -> list[tuple[Tensor, ...]]:
    """Return what write_inputs wrote, each tensor on its former device."""
    batches: dict[int, dict[int, Tensor]] = {}
    with safe_open(path, framework="pt") as file:
        for name, device in file.metadata().items():
            i, j = map(int, name.split("."))
            tensor = batches.setdefault(i, {})[j] = file.get_tensor(name).to(device)
            use_device_of(tensor)
    return [tuple(batch[j] for j in sorted(batch)) for _, batch in sorted(batches.items())]


def write_outputs(outputs: Sequence[Sequence[Tensor]], path: Path) -> bool:
    """Write the original's outputs for each calibration batch, and return whether they were written.

    They are not where they take more than a quarter of a gigabyte, or where the disk is full. Later processes then run
    the original again. Unlike safetensors, the format has every dtype.
    """
    plain = [[tensor.detach().as_subclass(Tensor).clone() for tensor in batch] for batch in outputs]
    if sum(tensor.nbytes for batch in plain for tensor in batch) > _MAX_OUTPUT_BYTES:
        return False
    try:
        torch.save(plain, path)
    except (OSError, RuntimeError):  # torch raises RuntimeError where the disk is full
        path.unlink(missing_ok=True)
        return False
    return True


def read_outputs(path: Path) -> tuple[tuple[Tensor, ...], ...] | None:
    """Return what write_outputs wrote, each tensor on its former device; None if unreadable. Unpickle only tensors."""
    try:
        return tuple(tuple(batch) for batch in torch.load(path, weights_only=True))
    except (OSError, RuntimeError, pickle.UnpicklingError):
        return None
