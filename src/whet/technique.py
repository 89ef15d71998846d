"""What an optimisation is, and the candidate that it works on."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from whet.artefact import Runtime, program
from whet.artefact.in_process import InProcessRuntime
from whet.machine import Limits, Machine
from whet.profiler import Profile
from whet.signature import FlatModel, Signature
from whet.workload import ExaminedWorkload


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
class NotApplicable:
    """The technique cannot help or cannot run here. `reason` is shown to the user."""

    reason: str


Applicability = Applies | NotApplicable


@dataclass(frozen=True)
class Candidate:
    """A variant of a workload while it is being made. Never changed in place: a technique returns a new one.

    module: tensors in, tuple of tensors out (as FlatModel), in float32 at its borders. runtime: set by a backend; it
    then runs instead of the module. num_threads: None leaves the machine's default. notes: downgrades, for the report.
    kept: names of layers, in the module, that whoever lowers the precision must leave in floating point.
    """

    examined: ExaminedWorkload
    module: nn.Module
    runtime: Runtime | None = None
    num_threads: int | None = None
    notes: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()

    @classmethod
    def original(cls, examined: ExaminedWorkload) -> "Candidate":
        """The original model. Outputs that share memory with something else get memory of their own."""
        module = FlatModel(examined.workload.model, examined.signature, examined.shared).eval()
        places = ", ".join(map(str, examined.shared))
        note = f"outputs that share memory with something else in the model are tensors of their own: {places}"
        return cls(examined, module, notes=(note,) if places else ())

    @property
    def signature(self) -> Signature:
        return self.examined.signature

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
        runtime = self.runtime or program.ProgramRuntime.export(self.module, self.examined)
        conditions = program.conditions(self.examined)
        return runtime.save(directory, self.signature, self.num_threads, self.notes, conditions)


@dataclass(frozen=True, kw_only=True)
class Technique:
    """One optimisation. The file that defines it ends by making this record, under the name TECHNIQUE.

    Attributes:
        name: The technique's name in recipes and tables; its file's name.
        stage: Where in a recipe it stands.
        order: Its place among the techniques of its stage, lowest first, as they compose.
        card: What it does, when it helps and hurts, its numerics, and its source, for people.
        options: A frozen dataclass of its options.
        check: Tells whether it applies to a workload on a machine, with these options.
        predict: Returns the speedup it could bring at the very most, from the profile and the limits; 1.0 is none.
        apply: Returns a new candidate. The one given stays as it was.
        space: For each option, the values that are worth trying, the default first.
        groups: What it claims for itself. Two techniques that claim one group exclude each other.
        needs: Groups that it depends on. A recipe with it pays only with one technique of each.
        restores_quality: Whether it gives back quality that the others of a recipe cost.
        reads_kept: Whether it leaves the layers in floating point that such a technique has marked.
        runs_python: Whether the model's own code runs in every call, so that nothing is lost that a graph leaves out.
        instead: The technique that is tried in its place wherever a graph can stand for the model; "" where none is.
        in_process: Whether the result cannot be saved, and each process makes it anew from the model's own code.
        dtype_of: Returns the dtype that it computes in, by its options; None where it leaves the dtype alone.
        weight_scale_of: Returns the bytes of the weights that it leaves, as a fraction of float32's. None where the
            dtype tells.
    """

    name: str
    stage: Stage
    order: int
    card: str | None
    options: type[Any]
    check: Callable[[ExaminedWorkload, Machine, Any], Applicability]
    predict: Callable[[Profile, Limits, Any], float]
    apply: Callable[[Candidate, Any], Candidate]
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    restores_quality: bool = False
    reads_kept: bool = False
    runs_python: bool = False
    instead: str = ""
    in_process: bool = False
    dtype_of: Callable[[Any], str] | None = None
    weight_scale_of: Callable[[Any], float] | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Where the technique stands in the order of recipes."""
        return STAGES.index(self.stage), self.order
