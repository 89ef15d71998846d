"""What a rule says about a place in the code: the evidence, what it may cost, and what to do instead."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import StrEnum


class Priority(StrEnum):
    """How much of a typical step's time is at stake: over a tenth, a few hundredths, less."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Confidence(StrEnum):
    """How sure the rule is that the code is what it looks like."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


SURENESS = {Confidence.HIGH: "sure", Confidence.MEDIUM: "likely", Confidence.LOW: "perhaps"}  # as people read it


def reaches(level: Priority | Confidence, least: Priority | Confidence) -> bool:
    """Return whether a level is as high as another of its kind, or higher."""
    order = list(type(level))
    return order.index(level) <= order.index(least)


@dataclass(frozen=True)
class Gain:
    """Estimated share of the step's time that goes away, from `low` to `high` (0 to 1), and what that assumes."""

    low: float
    high: float
    assumption: str

    def __post_init__(self) -> None:
        assert 0 <= self.low <= self.high < 1, self
        assert self.assumption, self


@dataclass(frozen=True, order=True)
class Span:
    """A piece of source: lines from 1, columns from 0 in characters; the end is exclusive, as everywhere in Python."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class SetKeyword:
    """Give the call at `call` the keyword `name`, or replace its value there."""

    call: Span
    name: str
    value: str


@dataclass(frozen=True)
class RemoveKeyword:
    """Take the keyword `name` away from the call at `call`."""

    call: Span
    name: str


@dataclass(frozen=True)
class ReplaceExpression:
    """Put `source`, an expression, in place of the expression at `expression`."""

    expression: Span
    source: str


@dataclass(frozen=True)
class ReplaceStatement:
    """Put `source`, one or more statements, in place of the statement at `statement`; comments above it stay.

    `source` is written as at the margin; it is indented to where it goes. Empty: the statement goes away.
    """

    statement: Span
    source: str


@dataclass(frozen=True)
class InsertBefore:
    """Put `source`, one or more statements, before the statement at `statement`."""

    statement: Span
    source: str


@dataclass(frozen=True)
class InsertAfter:
    """Put `source`, one or more statements, after the statement at `statement`."""

    statement: Span
    source: str


@dataclass(frozen=True)
class AddDecorator:
    """Decorate the function at `function`, innermost but for nothing: right above `def`."""

    function: Span
    source: str


@dataclass(frozen=True)
class WrapStatements:
    """Put the statements from `first` to `last`, of one block, under `header`, such as `with torch.no_grad():`."""

    first: Span
    last: Span
    header: str


@dataclass(frozen=True)
class AddImport:
    """Make sure that `import module` or `from module import name` stands at the top of the file."""

    module: str
    name: str | None = None


Edit = (
    SetKeyword
    | RemoveKeyword
    | ReplaceExpression
    | ReplaceStatement
    | InsertBefore
    | InsertAfter
    | AddDecorator
    | WrapStatements
    | AddImport
)


@dataclass(frozen=True)
class Fix:
    """A change of the source that removes the finding.

    title: in the imperative, "pin the loader's memory". is_safe: the program computes the same numbers, in the same
    order, on every machine it ran on before. Others need --unsafe-fixes.
    """

    title: str
    is_safe: bool
    edits: tuple[Edit, ...]


_ALWAYS = 0.95
_UNITS = {  # of work, by the kind of a hot path
    "training loop": "optimiser step",
    "training step": "optimiser step",
    "inference loop": "batch",
    "generation loop": "token",
    "denoising loop": "denoising step",
    "forward pass": "forward pass",
    "data loading": "sample",
}


@dataclass(frozen=True)
class HotPath:
    """Why a place in the code matters: it runs in every step of a loop, or may."""

    kind: str  # a HeatKind's value: "training loop", "inference loop", ...
    function: str  # qualified name of the function the place lies in; "" at the module's top
    loop_path: str = ""  # the file of the loop, where it is known; else ""
    loop_line: int = 0
    via: tuple[str, ...] = ()  # functions on the way from the loop to the place
    times_per_step: str = ""  # "once a step", "for each token in ...": where loops lie between
    guard: str = ""  # the condition under which it runs, where that is not every step
    times: float = 1.0  # in each unit of work, by what is known of conditions, loops and layers
    layers: int = 1  # of the class, one after the other, that each forward pass runs
    turns: int = 0  # of the loop in a call, where a call is what people wait for; 0: not so, or not known
    assumes: str = ""  # what `times` and `turns` rest on besides the code
    no_step: str = ""  # why it belongs to no step, though it looks so: what runs once a file or not at all

    @property
    def text(self) -> str:
        """In words, for a report."""
        words = f"{self.kind} at {self.loop_path}:{self.loop_line}" if self.loop_line else self.kind
        words += f", through {' → '.join(self.via)}" if self.via else ""
        return words + (f", if {self.guard}" if self.guard else "")

    @property
    def often(self) -> str:
        """How often it runs, in words: "once a denoising step, about 50 a call"."""
        unit = _UNITS.get(self.kind, "call")
        if self.no_step:
            return self.no_step
        if self.guard:
            return f"seldom: only if {self.guard}"
        if self.times_per_step or self.layers > 1:
            each = ", ".join(filter(None, (self.times_per_step, f"{self.layers} layers" * (self.layers > 1))))
            words = f"{each} in each {unit}, about {max(1, round(self.times))} times"
        elif self.times < _ALWAYS:
            words = f"in about {self.times:.0%} of all {unit}{'es' if unit.endswith(('s', 'ch')) else 's'}"
        else:
            words = f"once {'an' if unit[0] in 'aeiou' else 'a'} {unit}"
        return words + (f", about {self.turns} a call" if self.turns else "")


@dataclass(frozen=True)
class Hit:
    """What a rule yields: a node of the module's tree and what is wrong there. The engine makes a Finding of it.

    hot: from `module.heat(node)`, or None for findings that lie in no loop, such as the place a loader is made.
    priority: where it differs from the rule's own.
    """

    at: ast.AST
    message: str
    gain: Gain
    confidence: Confidence = Confidence.MEDIUM
    hot: HotPath | None = None
    fix: Fix | None = None
    priority: Priority | None = None


@dataclass(frozen=True)
class Measured:
    """Before over after, as measured with the fix in a copy: 1.2 is a fifth faster. Interval of 95 %.

    num_pairs: of processes, one without the fix and one with it; 0 where that is not known.
    """

    ratio: float
    low: float
    high: float
    verdict: str
    loss_note: str = ""
    peak_bytes_before: int = 0
    peak_bytes_after: int = 0
    num_pairs: int = 0


@dataclass(frozen=True)
class Finding:
    """A rule's hit in a file, complete. measured: ratio of step times before and after its fix, with its interval."""

    code: str
    name: str
    path: str
    span: Span
    message: str
    priority: Priority
    confidence: Confidence
    gain: Gain
    hot: HotPath | None = None
    fix: Fix | None = None
    measured: Measured | None = None
    cell: int | None = None  # the cell of a notebook, from 1; lines are those of the cell then
    is_offline: bool = False  # whether a person runs its file once in a while: a conversion, an export, a comparison
    cost: float = 0.0  # of its cause: the share of the program's time that is expected to go away
    cause: int = 0  # which of the causes it has, from 1, the costliest first; 0 before they were told apart
