"""A torch.export program, run by PyTorch itself: what is saved when no backend compiled the model.

The file is torch's .pt2 archive; whet reads it with weights_only loading, so nothing in it is unpickled freely.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from whet.artefact.runtime import Manifest, Runtime
from whet.errors import ArtefactError, TargetError
from whet.workload import Subject

FILE = "program.pt2"


def export(module: nn.Module, subject: Subject) -> torch.export.ExportedProgram:
    """The module as a graph of aten operators, on the subject's first input, its free dimensions kept free.

    Raises TargetError where the model's code cannot be traced; the message names the reason that torch gave.
    """
    arguments = subject.flat_inputs[0]
    shapes = subject.signature.dynamic_shapes
    try:
        with torch.no_grad():
            return torch.export.export(
                module, arguments, dynamic_shapes=(shapes,) if shapes is not None else None, strict=False
            )
    except Exception as error:  # torch.export raises whatever the user's forward or its tracer does
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TargetError(f"torch.export cannot trace the model: {reason}") from error


class ProgramRuntime(Runtime):
    """An exported program run operator by operator."""

    NAME = "program"

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program = program
        self._module = program.module(check_guards=False)

    @classmethod
    def export(cls, module: nn.Module, subject: Subject) -> Self:
        return cls(export(module, subject))

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self._module(*tensors)  # type: ignore[no-any-return]

    def write(self, directory: Path) -> None:
        torch.export.save(self._program, directory / FILE)

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        path = directory / FILE
        refuse_pickles(path)
        try:
            return cls(torch.export.load(path))
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise ArtefactError(f"{path} is damaged: {str(error).splitlines()[0]}") from error


def refuse_pickles(path: Path) -> None:
    """Raise ArtefactError where an archive holds anything that torch.export.load would unpickle freely.

    torch reads tensors raw, but falls back to full unpickling for custom objects and for sample inputs that
    weights_only loading refuses. whet never writes such entries, so an archive that has one did not come from it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                parts = Path(name).parts
                if parts[-1].startswith(("custom_obj", "opaque_obj")):
                    raise ArtefactError(f"{path} holds a pickled object ({name}); whet loads none")
                if parts[-1].endswith("_config.json") and _has_pickle(json.loads(archive.read(name))):
                    raise ArtefactError(f"{path} holds pickled tensors ({name}); whet loads none")
                if "sample_inputs" in parts:
                    torch.load(io.BytesIO(archive.read(name)), weights_only=True)
    except (zipfile.BadZipFile, OSError, json.JSONDecodeError, pickle.UnpicklingError, RuntimeError) as error:
        raise ArtefactError(f"{path} is damaged or not of whet's making: {str(error).splitlines()[0]}") from error


def _has_pickle(config: Any) -> bool:
    if isinstance(config, dict):
        return bool(config.get("use_pickle")) or any(_has_pickle(value) for value in config.values())
    return isinstance(config, list) and any(_has_pickle(value) for value in config)
