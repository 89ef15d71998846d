"""Define what every kind of saved model can do: run, write its files, read them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, TypeAdapter, ValidationError
from torch import Tensor

from whet.core.artefact.operators import OperatorSource, sources_of
from whet.core.artefact.shape_guards import Guards, is_arithmetic, readable
from whet.core.signature import Signature
from whet.errors import ArtefactError, OutputError, reason
from whet.files import write_whole
from whet.ui.figures import one_line

MANIFEST = "artefact.json"
RESULT = "result.json"  # what a tuning run found, in its output directory
MODEL = "model"  # the artefact that a tuning run saved, in its output directory
FORMAT = 2  # 1 had a signature of tensors alone, without the structure around them


class Manifest(BaseModel, extra="forbid", ser_json_inf_nan="constants"):
    """Hold the contents of artefact.json: how to run and call the model beside it."""

    format: int = FORMAT
    runtime: str
    signature: dict[str, Any]
    num_threads: int | None = None
    settings: dict[str, Any] = {}
    notes: list[str] = []
    conditions: list[str] = []  # on the sizes of inputs; see guards
    operators: list[OperatorSource] = []  # custom ones, which a process must have before it can load the artefact
    fingerprint: str | None = None

    def read_signature(self) -> Signature:
        return _SIGNATURE.validate_python(self.signature)


_SIGNATURE = TypeAdapter(Signature)


class Runtime(ABC):
    """Run a compiled or exported model on flat tensors. It can be saved and loaded without pickle."""

    NAME: ClassVar[str]

    @abstractmethod
    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs for flat inputs, in the signature's order. The next call may overwrite them."""

    @abstractmethod
    def write(self, directory: Path) -> None:
        """Write the model's files into an existing directory."""

    @classmethod
    @abstractmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        """Load the model's files.

        Raises:
            ArtefactError: They are damaged.
            MissingExtra: The library that runs them is not installed.
        """

    @property
    def settings(self) -> dict[str, Any]:
        """Return what `read` needs in addition to the files, as plain JSON values."""
        return {}

    @property
    def conditions(self) -> list[str]:
        """Return the conditions, as guards read them, under which this runtime computes what the graph says."""
        return []

    @property
    def custom_operators(self) -> list[str]:
        """The qualified names of the custom operators that the model calls."""
        return []

    @property
    def ranges_per_call(self) -> bool | None:
        """Return whether a call quantises all its samples by one range that it finds; None if that is not known."""
        return False

    def save(
        self,
        directory: Path,
        signature: Signature,
        num_threads: int | None = None,
        notes: Sequence[str] = (),
        conditions: Sequence[str] = (),
    ) -> Path:
        """Write the files, then the manifest, so that a directory with a manifest is complete.

        Args:
            num_threads: PyTorch's threads for the model; None leaves them alone.
            conditions: Conditions on the sizes of inputs. They are checked at every call of the loaded artefact. A
                condition that cannot be checked becomes a note.

        Raises:
            OutputError: The directory cannot be written.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error
        self.write(directory)
        manifest = Manifest(
            runtime=self.NAME,
            signature=_SIGNATURE.dump_python(signature, mode="json"),
            num_threads=num_threads,
            settings=self.settings,
            notes=[
                *notes,
                *(f"not checked when called: {readable(c)}" for c in conditions if not is_arithmetic(c)),
            ],
            conditions=[c for c in conditions if is_arithmetic(c)],
            operators=sources_of(self.custom_operators),
        )
        write_whole(directory / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        return directory


def read_manifest(directory: Path) -> Manifest:
    """Read an artefact's manifest, or raise ArtefactError, which says how it is missing or wrong."""
    path = directory / MANIFEST
    if not directory.is_dir():
        if why := _why_unsaved(directory):
            raise ArtefactError(f"{directory} does not exist. {why}")
        raise ArtefactError(f"{directory} is no directory; give one that `whet tune` or `whet apply` wrote")
    if not path.is_file():
        raise ArtefactError(f"{directory} holds no {MANIFEST}; give a directory that `whet tune` or `whet apply` wrote")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and (found := data.get("format", FORMAT)) != FORMAT:
            remedy = "write it again with `whet apply`" if found in range(FORMAT) else "install a newer whet"
            raise ArtefactError(f"{path} has format {found}, this whet reads format {FORMAT}; {remedy}")
        manifest = Manifest.model_validate(data)
        manifest.read_signature()
        Guards(manifest.conditions)
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, ValidationError) as error:
        raise ArtefactError(f"{path} is damaged ({reason(error)}); write it again with `whet apply`") from error
    return manifest


def _why_unsaved(directory: Path) -> str:
    """Return what result.json, beside a missing directory, says: why nothing was saved, and what to do instead."""
    try:
        result = json.loads((directory.parent / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    why = result.get("unsaved") if isinstance(result, dict) else None
    return one_line(why) if isinstance(why, str) else ""
