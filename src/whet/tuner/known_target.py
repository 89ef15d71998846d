"""A target as its examination left it, so that the processes that work on it later don't examine it again.

This module imports no technique: a process of the final comparison imports it, and holds nothing that serving the
variant would not hold.
"""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from whet.measure.clock import use_device_of
from whet.scripted import stateless
from whet.signature import Signature, output_tensors, split, tensors_of
from whet.workload import ExaminedWorkload, InferenceWorkload, examine, is_near
from whet.workloads.handover import open_target

INPUTS = "inputs.safetensors"
OUTPUTS = "outputs.pt"


class BatchDimension(BaseModel):
    """What is known of a target's batch dimension.

    Attributes:
        size: Rows of the inputs.
        freed: The inputs, by position, whose first dimension was set free though it never varied.
        reason: Why it is fixed; "" where it is free.
    """

    model_config = ConfigDict(frozen=True)

    size: int = 1
    freed: tuple[int, ...] = ()
    reason: str = ""


class KnownTarget(BaseModel):
    """What a process is told of a target that was examined before.

    Attributes:
        target: The target's name or address.
        directory: Where the examination wrote the inputs and the original's outputs.
        signature: The tensors that go in and come out, with the batch dimension free where it may be.
        batch: What is known of the batch dimension.
        score: The original's quality; None without one.
        sample_scores: The score of each sample, where the quality gives them.
        effects: What forward does that a graph would leave out, in words.
        shared: Places of the outputs that share memory with an input, a weight or another output.
        depends_on_grad_mode: Whether the outputs differ while gradients are on.
        content: A digest of the parameters and of all batches, by which a process knows that it built the same target.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    directory: Path
    signature: Signature
    batch: BatchDimension = BatchDimension()
    score: float | None = None
    sample_scores: tuple[float, ...] = ()
    effects: tuple[str, ...] = ()
    shared: tuple[int, ...] = ()
    depends_on_grad_mode: bool = False
    content: str = ""

    def open(self) -> ExaminedWorkload:
        """Build the target again and return it as it was examined.

        A target that this process builds otherwise is examined anew, since its outputs are others: one that draws its
        weights or inputs without a seed, for example. Its score and signature stay those of the examination.
        """
        workload = open_target(self.target)
        outputs = self._known_outputs(workload)
        if outputs is None:
            examined = examine(workload, with_quality=False)
        else:
            examined = ExaminedWorkload(workload, self.signature, outputs, None, (), self.effects, self.shared)
            examined = replace(examined, depends_on_grad_mode=self.depends_on_grad_mode)
        return replace(examined, signature=self.signature, score=self.score, sample_scores=self.sample_scores)

    def _known_outputs(self, workload: InferenceWorkload) -> tuple[tuple[Tensor, ...], ...] | None:
        """Return the original's outputs by calibration batch; None where this workload is another one."""
        model = workload.model.eval()
        for tensor in itertools.islice(tensors_of(workload.inputs[0]), 1):
            use_device_of(tensor)
        if not self.content or digest_of_content(workload) != self.content:
            return None
        outputs = read_outputs(self.directory / OUTPUTS)
        args, kwargs = split(workload.calibration[0])
        with torch.no_grad(), stateless(model):
            first = output_tensors(model(*args, **kwargs))
        is_same = len(first) == len(outputs[0]) and all(map(is_near, first, outputs[0]))
        return outputs if is_same else None


def digest_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of tensors with their names and values."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in tensors:
        found.update(name.encode())
        found.update(tensor.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def digest_of_content(workload: InferenceWorkload) -> str:
    """Return a digest of a workload's parameters and batches. Buffers are left out, since some count calls."""
    batches = [*workload.inputs, *workload.calibration]
    data = [(f"{i}.{j}", tensor) for i, batch in enumerate(batches) for j, tensor in enumerate(tensors_of(batch))]
    named = itertools.chain(workload.model.named_parameters(), data)
    return digest_of((f"{name} {tuple(tensor.shape)} {tensor.dtype}", tensor) for name, tensor in named)


def write_inputs(examined: ExaminedWorkload, path: Path) -> None:
    """Write the flat inputs of every batch, named batch.position; the metadata hold each one's device."""
    named = {
        f"{i}.{j}": t.contiguous().clone() for i, flat in enumerate(examined.flat_inputs) for j, t in enumerate(flat)
    }
    save_file(named, path, metadata={name: str(tensor.device) for name, tensor in named.items()})


def read_inputs(path: Path) -> list[tuple[Tensor, ...]]:
    """Return what write_inputs wrote, on the devices it was on."""
    batches: dict[int, dict[int, Tensor]] = {}
    with safe_open(path, framework="pt") as file:
        for name, device in file.metadata().items():
            i, j = map(int, name.split("."))
            tensor = batches.setdefault(i, {})[j] = file.get_tensor(name).to(device)
            use_device_of(tensor)
    return [tuple(batch[j] for j in sorted(batch)) for _, batch in sorted(batches.items())]


def write_outputs(outputs: Sequence[Sequence[Tensor]], path: Path) -> None:
    """Write the original's outputs for each calibration batch. Unlike safetensors, the format has every dtype."""
    torch.save([[tensor.detach().clone() for tensor in batch] for batch in outputs], path)


def read_outputs(path: Path) -> tuple[tuple[Tensor, ...], ...]:
    """Return what write_outputs wrote, on the devices it was on. Nothing but tensors is unpickled."""
    return tuple(tuple(batch) for batch in torch.load(path, weights_only=True))
