"""Save a tuned model, load it in a fresh process, and call it as the original was called.

An artefact is a directory: artefact.json (how to run and call it) and the runtime's files. `load` reads it without the
code that built the model.
"""

import importlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from whet.core.artefact.operators import Library, check_registered, load_libraries, load_own
from whet.core.artefact.runtime import MANIFEST, Manifest, Runtime, read_manifest
from whet.core.artefact.shape_guards import Guards
from whet.core.signature import Signature
from whet.errors import ArtefactError
from whet.kernels.build import follow_torch

__all__ = ["MANIFEST", "Artefact", "Manifest", "Runtime", "load", "read_manifest"]

_LOG = logging.getLogger("whet")

# runtime name -> module and class; each imports its library only when used
_RUNTIMES = {
    "program": ("whet.core.artefact.program", "ProgramRuntime"),
    "inductor": ("whet.core.artefact.inductor", "InductorRuntime"),
    "compile": ("whet.core.artefact.inductor", "CompileRuntime"),
    "openvino": ("whet.core.artefact.openvino", "OpenVINORuntime"),
    "onnxruntime": ("whet.core.artefact.onnxruntime", "ONNXRuntime"),
    "native": ("whet.core.artefact.native.runtime", "NativeRuntime"),
}


class Artefact:
    """Run a loaded artefact. Call it as the original model; it returns what the original returned.

    In place of a dict or a model-output object it returns a dict whose entries are attributes too.
    """

    def __init__(self, runtime: Runtime, manifest: Manifest) -> None:
        self.runtime = runtime
        self.manifest = manifest
        self.signature: Signature = manifest.read_signature()
        self._guards = Guards(manifest.conditions)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with the original's arguments, and return what the original would return."""
        return self.signature.unflatten(self.run(*self.signature.flatten(args, kwargs)))

    def __repr__(self) -> str:
        return f"Artefact(runtime={self.manifest.runtime!r}, takes={self.signature})"

    def run(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run on flat tensors, in the signature's order, without the calling convention.

        Every output is a tensor of its own, without gradients.

        Raises ArtefactError for sizes with which the model would do something else than the graph that was tuned, under
        torch.autocast, and for inputs that require gradients while these are recorded.
        """
        _check_surroundings(tensors)
        self._guards.check(tensors)
        return self.runtime.run(tensors)

    def eval(self) -> Self:
        """Do nothing: what was tuned is always in evaluation mode."""
        return self

    def train(self, mode: bool = True) -> Self:
        """Raise ArtefactError: what was tuned cannot be trained."""
        if mode:
            raise ArtefactError("what was tuned is in evaluation mode for good; train the original and tune it again")
        return self


def _check_surroundings(tensors: Sequence[Tensor]) -> None:
    """Raise ArtefactError where PyTorch's own state would have the original do something else."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise ArtefactError(
            "an input requires gradients, and what was tuned computes none; call it under torch.no_grad() or with "
            "x.detach()"
        )
    device = tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        raise ArtefactError("what was tuned has its own precisions; call it outside torch.autocast")


def load(directory: str | os.PathLike[str], *, libraries: Sequence[Library] = ()) -> Artefact:
    """Load what `whet tune` or `whet apply` wrote.

    Nothing is unpickled. An artefact compiled by torch.compile or exported to another runtime holds native code or a
    graph for it: load those from where you would install a program from. Sets torch's thread count where the
    recipe does, and says so in the log.

    Args:
        libraries: What registers the custom operators that the model calls, where it calls any: paths of shared
            libraries (.so) and of Python files (.py), and import names of Python modules. All of them are loaded, and
            nothing else is.

    Raises:
        ArtefactError: The directory is damaged, a library cannot be loaded, or a custom operator is still not
            registered; the message names what registered it when the model was tuned.
        OptionError: `libraries` holds something else.
        MissingExtra: The artefact's runtime is not installed.
    """
    path = Path(directory)
    manifest = read_manifest(path)
    if manifest.runtime not in _RUNTIMES:
        raise ArtefactError(
            f"{path} needs the runtime {manifest.runtime!r}, which this whet does not have; load it with the version "
            "of whet that saved it, or tune the model again"
        )
    load_libraries(libraries, manifest.operators)
    load_own(manifest.operators)
    check_registered(path, manifest.operators)
    set_threads(manifest.num_threads)
    module, name = _RUNTIMES[manifest.runtime]
    runtime: type[Runtime] = getattr(importlib.import_module(module), name)
    return Artefact(runtime.read(path, manifest), manifest)


def set_threads(num_threads: int | None) -> None:
    """Set the threads of torch and of whet's kernels where a recipe says so, and say so in the log."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
        follow_torch()
        _LOG.info("torch.set_num_threads(%d), as the recipe says", num_threads)
