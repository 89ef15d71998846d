"""Describe what an optimisation technique is, and the candidate that it works on."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from whet.core.artefact import Runtime, program
from whet.core.artefact.in_process import InProcessRuntime
from whet.core.recipe import Step
from whet.core.signature import FlatModel, Signature
from whet.core.workload import ExaminedWorkload
from whet.errors import RecipeError
from whet.measure.machine import Limits, Machine
from whet.profiling.model import Profile


class Stage(StrEnum):
    """Name the stages of a recipe, in the order in which their techniques compose."""

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
    """The technique can be tried here; `detail` tells what it would work on, in a few words ("12 linear layers")."""

    detail: str


@dataclass(frozen=True)
class NotApplicable:
    """The technique cannot help or cannot run here.

    Attributes:
        reason: Why, as a text for the user.
        is_so: Whether what the technique would do is done already, so that leaving it out changes nothing.
        at_start: Whether the technique applies in a process that is started with the environment that it needs.
    """

    reason: str
    is_so: bool = False
    at_start: bool = False


Applicability = Applies | NotApplicable
OptionSpace = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Hold the options of a technique that has none."""


@dataclass(frozen=True, kw_only=True)
class AnyTechnique:
    """Hold what a search needs to know of a technique, for inference or for training.

    Attributes:
        name: The technique's name in recipes and tables, and the name of its file.
        order: Its place among the techniques of its stage. The lowest comes first.
        card: What it does, when it helps and hurts, its numerics and its source, for people.
        options: A frozen dataclass of its options. There are none by default.
        check: Returns whether it applies to a subject on a machine with these options.
        space: For each option, the values that are worth trying. The default comes first.
        groups: What it claims for itself. Two techniques that claim the same group exclude each other.
        needs: Groups that it depends on. A recipe with it pays only if it contains a technique of each.
        restores_quality: Whether it wins back quality that other techniques of a recipe cost.
        reads_kept: Whether it leaves the layers in Candidate.kept in floating point.
        favours: Returns the values of options that are tried first for a subject, where they are not the defaults.
        compiles: Whether it runs a compiler, so that others that promise as much are tried before it.
    """

    name: str
    stage: StrEnum
    order: int
    card: str | None
    options: type[Any] = NoOptions
    check: Callable[..., Applicability]
    space: OptionSpace = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    restores_quality: bool = False
    reads_kept: bool = False
    favours: Callable[[Any], Mapping[str, Any]] | None = None
    compiles: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Return the position in the order of recipes: the stage's index, then the order within the stage."""
        return list(type(self.stage)).index(self.stage), self.order

    def options_of(self, step: Step) -> Any:
        """Return the options of a step.

        Raises:
            RecipeError: There is no such option.
        """
        try:
            return self.options(**step.options)
        except TypeError as error:
            known = ", ".join(self.space) or "none"
            raise RecipeError(f"{self.name} does not take {dict(step.options)}; its options are: {known}") from error


Known = TypeVar("Known", bound=AnyTechnique)


def named(step: Step, table: Mapping[str, Known]) -> Known:
    """Return the technique that a step names.

    Raises:
        RecipeError: The table has no such technique.
    """
    if step.technique not in table:
        raise RecipeError(f"there is no technique {step.technique!r}; there are: {', '.join(table)}")
    return table[step.technique]


@dataclass(frozen=True)
class Candidate:
    """Hold a variant of a workload while it is being made.

    A technique never changes a candidate in place. It returns a new one.

    Attributes:
        examined: The workload with its original model.
        module: Takes flat tensors and returns a tuple of tensors, like FlatModel. Its inputs and outputs have the
            original's dtypes, whatever it computes in.
        runtime: Runs instead of the module where it is set. A backend sets it.
        num_threads: The number of threads to run on. None leaves the machine's default.
        notes: Downgrades, as texts for the report.
        kept: Names of layers of the module that must stay in floating point when a technique lowers the precision.
    """

    examined: ExaminedWorkload
    module: nn.Module
    runtime: Runtime | None = None
    num_threads: int | None = None
    notes: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()

    @classmethod
    def original(cls, examined: ExaminedWorkload) -> "Candidate":
        """Return the original model as a candidate.

        Outputs that share memory with an input, a weight or another output get memory of their own. A note says so.
        """
        module = FlatModel(examined.workload.model, examined.signature, examined.shared).eval()
        places = ", ".join(map(str, examined.shared))
        note = f"outputs that share memory with something else in the model are tensors of their own: {places}"
        return cls(examined, module, notes=(note,) if places else ())

    @property
    def signature(self) -> Signature:
        return self.examined.signature

    def copy_module(self) -> nn.Module:
        """Return a deep copy of the module, which the caller may change."""
        return copy.deepcopy(self.module)

    def with_module(self, module: nn.Module, *notes: str) -> "Candidate":
        """Return this candidate with another module and additional notes.

        Raises:
            ValueError: A backend has already taken over the graph.
        """
        if self.runtime is not None:
            raise ValueError("a backend owns this candidate's graph; module techniques come before it")
        return replace(self, module=module.eval(), notes=self.notes + notes)

    def with_runtime(self, runtime: Runtime, *notes: str) -> "Candidate":
        return replace(self, runtime=runtime, notes=self.notes + notes)

    @property
    def is_in_process(self) -> bool:
        """Return whether each process has to make it anew from the model's own code, since it cannot be saved."""
        return isinstance(self.runtime, InProcessRuntime)

    def keeps(self, name: str) -> bool:
        """Return whether a layer must stay in floating point. Its name may begin with the prefix of a wrapper."""
        return name in self.kept or any(name.endswith(f".{kept}") for kept in self.kept)

    def call(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the candidate on flat inputs."""
        if self.runtime is not None:
            return self.runtime.run(tensors)
        return self.module(*tensors)  # type: ignore[no-any-return]

    def save(self, directory: Path) -> Path:
        """Write the candidate as an artefact that whet.load reads in a fresh process, and return the directory."""
        runtime = self.runtime or program.ProgramRuntime.export(self.module, self.examined)
        conditions = list(dict.fromkeys([*program.conditions(self.examined), *runtime.conditions]))
        return runtime.save(directory, self.signature, self.num_threads, self.notes, conditions)


@dataclass(frozen=True, kw_only=True)
class Technique(AnyTechnique):
    """Describe one optimisation. Each technique's file ends with such a record under the name TECHNIQUE.

    Attributes:
        predict: Returns the highest speedup that the profile and the machine's limits allow; 1.0, the default, is none.
        apply: Returns a new candidate. The one given stays as it was.
        runs_python: Whether the model's own code runs in every call, so that effects which a graph would leave out
            still happen.
        instead: The name of the technique that is tried in its place wherever the model can be exported as a graph; ""
            where there is none.
        in_process: Whether its result cannot be saved, so that each process makes it anew from the model's own code.
        dtype_of: Returns the dtype that it computes in, by its options. None where it leaves the dtype alone.
        weight_scale_of: Returns the size of its weights as a fraction of their size in float32. None where the dtype
            determines it.
        work_scale_of: Returns the operations as a fraction of the original's. None where all of them stay.
    """

    stage: Stage
    check: Callable[[ExaminedWorkload, Machine, Any], Applicability]
    predict: Callable[[Profile, Limits, Any], float] = lambda profile, limits, options: 1.0
    apply: Callable[[Candidate, Any], Candidate]
    runs_python: bool = False
    instead: str = ""
    in_process: bool = False
    dtype_of: Callable[[Any], str] | None = None
    weight_scale_of: Callable[[Any], float] | None = None
    work_scale_of: Callable[[Any], float] | None = None
