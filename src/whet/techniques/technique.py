"""What an optimisation is: a file that says when it applies, how much it could gain, and how it is done.

A technique module has

    NAME      as in recipes and tables; the module's own name
    STAGE     where in the order of a recipe it stands
    GROUPS    what it claims for itself: two techniques that claim one group exclude each other
    SPACE     option name -> the values worth trying, the default first
    Options   a frozen dataclass of its options
    check     does it apply to this subject on this machine?
    predict   the speedup it could bring at the very most, from the profile and the machine's limits: 1.0 is none
    apply     candidate -> candidate; the one given stays as it was

and may have

    NEEDS             groups without a technique of which it cannot pay
    RESTORES_QUALITY  True where it gives back quality that the others of a recipe cost
    READS_KEPT        True where it leaves the layers in floating point that such a technique has marked
    RUNS_PYTHON       True where the model's own code runs in every call: nothing that a graph leaves out is lost
    IN_PROCESS        True where the result cannot be saved, and each process makes it anew from the model's own code
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from whet.artefact import Runtime, program
from whet.artefact.in_process import InProcessRuntime
from whet.machine import Limits, Machine
from whet.profiler import Profile
from whet.signature import FlatModel, Signature
from whet.workload import Subject


class Stage(StrEnum):
    """The order in which techniques compose."""

    STRUCTURE = "structure"
    PRECISION = "precision"
    LAYOUT = "layout"
    BACKEND = "backend"
    RUNTIME = "runtime"


STAGES = tuple(Stage)

PRECISION = "precision"
BACKEND = "backend"


@dataclass(frozen=True)
class Applies:
    """The technique can be tried here. `detail` says on what, in a few words."""

    detail: str


@dataclass(frozen=True)
class Refused:
    """The technique cannot help or cannot run here. `reason` is shown to the user."""

    reason: str


Verdict = Applies | Refused


@dataclass(frozen=True)
class Candidate:
    """A variant of a workload while it is being made. Never changed in place: a technique returns a new one.

    module: tensors in, tuple of tensors out (as FlatModel), in float32 at its borders. runtime: set by a backend; it
    then runs instead of the module. num_threads: None leaves the machine's default. notes: downgrades, for the report.
    kept: names of layers, in the module, that whoever lowers the precision must leave in floating point.
    """

    subject: Subject
    module: nn.Module
    runtime: Runtime | None = None
    num_threads: int | None = None
    notes: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()

    @classmethod
    def original(cls, subject: Subject) -> "Candidate":
        """The subject's own model. Outputs that share memory with something else get memory of their own."""
        module = FlatModel(subject.workload.model, subject.signature, subject.shared).eval()
        places = ", ".join(map(str, subject.shared))
        note = f"outputs that share memory with something else in the model are tensors of their own: {places}"
        return cls(subject, module, notes=(note,) if places else ())

    @property
    def signature(self) -> Signature:
        return self.subject.signature

    def copy_module(self) -> nn.Module:
        """A deep copy of the module, free to be changed."""
        return copy.deepcopy(self.module)

    def with_module(self, module: nn.Module, *notes: str) -> "Candidate":
        """The same candidate around another module. Raises ValueError after a backend, which owns the graph."""
        if self.runtime is not None:
            raise ValueError("a backend owns this candidate's graph; module techniques come before it")
        return replace(self, module=module.eval(), notes=self.notes + notes)

    def with_runtime(self, runtime: Runtime, *notes: str) -> "Candidate":
        return replace(self, runtime=runtime, notes=self.notes + notes)

    @property
    def is_in_process(self) -> bool:
        """Whether it cannot be saved, and each process has to make it anew from the model's own code."""
        return isinstance(self.runtime, InProcessRuntime)

    def keeps(self, name: str) -> bool:
        """Whether a layer is to stay in floating point. Wrappers may have put a prefix before its name."""
        return name in self.kept or any(name.endswith(f".{kept}") for kept in self.kept)

    def call(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run it on flat inputs."""
        if self.runtime is not None:
            return self.runtime.run(tensors)
        return self.module(*tensors)  # type: ignore[no-any-return]

    def save(self, directory: Path) -> Path:
        """Write it as an artefact that whet.load reads in a fresh process. Returns the directory."""
        runtime = self.runtime or program.ProgramRuntime.export(self.module, self.subject)
        conditions = program.conditions(self.subject)
        return runtime.save(directory, self.signature, self.num_threads, self.notes, conditions)


@runtime_checkable
class Technique(Protocol):
    """A technique module, as the search sees it."""

    NAME: str
    STAGE: Stage
    GROUPS: frozenset[str]
    SPACE: Mapping[str, tuple[Any, ...]]
    Options: type

    check: Callable[[Subject, Machine, Any], Verdict]
    predict: Callable[[Profile, Limits, Any], float]
    apply: Callable[[Candidate, Any], Candidate]
