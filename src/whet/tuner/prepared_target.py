"""Hand a target over to the child processes of a search, whether it has a name or lies in memory."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from whet.core.signature import Batch
from whet.core.workload import Quality, TrainingWorkload, Workload
from whet.errors import TargetError
from whet.workloads.handover import hand_over
from whet.workloads.target import trained_by
from whet.workloads.target_name import with_training


@dataclass(frozen=True)
class Prepared:
    """Describe a target that child processes can open.

    Attributes:
        address: How child processes name it.
        name: How people name it.
        scratch: A directory for the files of its examination.
        words: How the command line names it; "" where it was handed over as an object, which that cannot name.
    """

    address: str
    name: str
    scratch: Path
    words: str = ""


@contextlib.contextmanager
def prepared(
    target: str | Workload | TrainingWorkload, training: str | TrainingWorkload | None = None
) -> Iterator[Prepared]:
    """Hand a target, and the training that it came from, over to child processes, with a directory to examine it in."""
    with tempfile.TemporaryDirectory(prefix="whet-examine-") as scratch:
        if isinstance(target, str) and isinstance(training, TrainingWorkload):
            address = with_training(target, hand_over(training, Path(scratch) / "training.pkl"))
            yield Prepared(address, target, Path(scratch))
            return
        if isinstance(target, str):
            yield Prepared(target, target, Path(scratch), words=target)
            return
        if training is not None and isinstance(target, Workload):
            target = trained_by(target, training)
        address = hand_over(target, Path(scratch) / "workload.pkl")
        yield Prepared(address, target.name, Path(scratch))


def workload_of(
    model: nn.Module,
    inputs: Batch | Sequence[Batch] | None,
    quality: Quality | None = None,
    calibration: Sequence[Batch] = (),
) -> Workload:
    """Return a model in memory as a workload.

    Raises:
        TargetError: It is no module, or has no inputs.
    """
    if not isinstance(model, nn.Module):
        raise TargetError(f"tune takes a target's name, a Workload or a torch.nn.Module, not {type(model).__name__}")
    if inputs is None:
        raise TargetError("a model in memory needs inputs: one batch, or a list of batches")
    batches: Sequence[Batch] = inputs if isinstance(inputs, list) else [inputs]
    name = type(model).__name__
    return Workload(model=model.eval(), inputs=batches, quality=quality, calibration=tuple(calibration), name=name)
