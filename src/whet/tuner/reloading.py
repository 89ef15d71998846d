"""Check that an artefact loads and runs in a fresh process before it counts as saved.

The fresh process has not imported the target's code. All that it has of the target is the libraries that register the
artefact's custom operators, and the entries of `sys.path` that the target's process had.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from whet.errors import ArtefactError
from whet.measure.closeness import distance_between
from whet.measure.isolate import Failure
from whet.tuner.budget import Runner
from whet.tuner.known_target import read_inputs
from whet.tuner.output_error import real
from whet.tuner.variant_process import LoadRequest

ANSWERS = "answers.safetensors"
_LIMIT_S = 180.0
_MAX_DISTANCE = 1e-3  # between the outputs of two processes, whose libraries may choose other kernels or orders of sums


def write_answers(run: Callable[..., Sequence[Tensor]], batch: Sequence[Tensor], path: Path) -> None:
    """Write an artefact's outputs for one flat batch, for `reload` to compare with."""
    with torch.no_grad():
        answers = {str(i): _plain(y).clone() for i, y in enumerate(run(*batch))}
    save_file(answers, path)


class ReloadRequest(LoadRequest, frozen=True):
    """Tell a fresh process what to load.

    Attributes:
        directory: The artefact. What `write_answers` wrote for the first batch lies beside it.
    """

    directory: Path


def reload(request: ReloadRequest) -> None:
    """Load an artefact in this process and compare its outputs with those that it gave where it was made.

    Raises:
        ArtefactError: It does not load, or its outputs differ.
    """
    artefact = request.load(request.directory)
    check_answers(artefact.run, read_inputs(request.inputs)[0], request.directory.parent / ANSWERS)


def _plain(tensor: Tensor) -> Tensor:
    """Return the numbers in a form that safetensors has: on the CPU, contiguous, complex numbers as pairs."""
    return real(tensor).cpu().contiguous()


def check_answers(run: Callable[..., Sequence[Tensor]], batch: Sequence[Tensor], path: Path) -> None:
    """Check that an artefact's outputs are close to those that `write_answers` wrote.

    Raises:
        ArtefactError: They differ.
    """
    expected = [tensor for _, tensor in sorted(load_file(path).items(), key=lambda item: int(item[0]))]
    with torch.no_grad():
        found = [_plain(y) for y in run(*batch)]
    if [(y.shape, y.dtype) for y in found] != [(y.shape, y.dtype) for y in expected]:
        raise ArtefactError("in a fresh process it returns tensors of other shapes or dtypes")
    distance = max((distance_between(a, b) for a, b in zip(expected, found, strict=True)), default=0.0)
    if not distance <= _MAX_DISTANCE:
        raise ArtefactError(
            f"in a fresh process it answers differently (distance {distance:.2g}): it depends on something that the "
            "model's own code sets up"
        )


def refusal(failure: Failure) -> str:
    return f"a fresh process cannot use it: {failure.message}"


def reload_failure(run: Runner, request: ReloadRequest) -> Failure | None:
    """Return the failure of a fresh process that loads and runs an artefact as its maker did, or None."""
    return run(reload, request, request.directory.parent / "reload", _LIMIT_S).failure
