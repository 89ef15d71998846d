"""What is saved loads: an artefact is loaded and run in a fresh process before it is called saved.

The fresh process has not imported the target's code. It has the libraries that register the artefact's custom
operators, and what the target's process had on `sys.path`, and nothing else of the target's.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from safetensors.torch import load_file, save_file
from torch import Tensor

from whet.errors import ArtefactError
from whet.measure.closeness import distance_between
from whet.tuner.budget import Runner
from whet.tuner.known_target import read_inputs
from whet.tuner.variant_process import load_with

ANSWERS = "answers.safetensors"
LIMIT_S = 180.0

_MAX_DISTANCE = 1e-3  # of outputs between two processes: libraries may choose other paths, and sums another order


def write_answers(run: Callable[..., Sequence[Tensor]], batch: Sequence[Tensor], path: Path) -> None:
    """Write what an artefact answers to one flat batch, for `reload` to compare with."""
    with torch.no_grad():
        answers = {str(i): _plain(y).clone() for i, y in enumerate(run(*batch))}
    save_file(answers, path)


class ReloadRequest(BaseModel):
    """What a fresh process is asked to load.

    Attributes:
        directory: The artefact.
        inputs: The file of flat inputs; the first batch is run.
        answers: What `write_answers` wrote for that batch.
        libraries: What registers the artefact's custom operators.
        sys_path: Directories to be searched for modules after those of this process.
        num_threads: What PyTorch's number of threads is to be set to; None leaves it.
    """

    model_config = ConfigDict(frozen=True)

    directory: Path
    inputs: Path
    answers: Path
    libraries: tuple[str, ...] = ()
    sys_path: tuple[str, ...] = ()
    num_threads: int | None = None


def reload(request: ReloadRequest) -> None:
    """Load an artefact in this process and hold its answers against those it gave where it was made.

    Raises:
        ArtefactError: It does not load, or it answers differently.
    """
    if request.num_threads is not None:
        torch.set_num_threads(request.num_threads)
    artefact = load_with(request.directory, request.libraries, request.sys_path)
    check_answers(artefact.run, read_inputs(request.inputs)[0], request.answers)


def _plain(tensor: Tensor) -> Tensor:
    """The same numbers in a form that safetensors has: on the CPU, in one piece, complex ones as pairs."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.detach().cpu().contiguous()


def check_answers(run: Callable[..., Sequence[Tensor]], batch: Sequence[Tensor], path: Path) -> None:
    """Raise ArtefactError where an artefact answers differently from what `write_answers` wrote."""
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


def reload_refusal(
    run: Runner,
    artefact: Path,
    *,
    inputs: Path,
    libraries: Sequence[str],
    sys_path: Sequence[str],
    num_threads: int | None,
    limit_s: float = LIMIT_S,
) -> str:
    """Return why a fresh process cannot load and run an artefact as its maker did, or "" where it can.

    The answers of its maker lie beside the artefact's directory.
    """
    request = ReloadRequest(
        directory=artefact,
        inputs=inputs,
        answers=artefact.parent / ANSWERS,
        libraries=tuple(libraries),
        sys_path=tuple(sys_path),
        num_threads=num_threads,
    )
    failure = run(reload, request, artefact.parent / "reload", limit_s).failure
    return "" if failure is None else f"a fresh process cannot use it: {failure.message}"
