"""What there is to choose from: the techniques that apply here, with their options and their bounds.

An Offer is small and plain (JSON), made once by a child process that has the model, and kept in the study, so that
the parent never builds the model and every machine that shares a search chooses from the same space.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from whet.artefact import program
from whet.machine import Limits, Machine
from whet.machine.limits import element_bytes
from whet.profiler import Profile
from whet.recipe import Recipe, Step
from whet.technique import BACKEND, PRECISION, Applies, Technique
from whet.techniques import FOLLOWING, TABLE
from whet.tuner.build import graph_refusal, in_order, is_in_process
from whet.tuner.result import RefusedTechnique
from whet.workload import Subject

NONE = "none"
Suggest = Callable[[str, Sequence[Any]], Any]


class Offer(BaseModel):
    """A technique that applies. bounds: the most each variant could gain, by the step's text; shrinks: how many times
    fewer bytes its weights take than float32's."""

    technique: str
    detail: str
    groups: list[str]
    options: dict[str, list[bool | int | float | str]] = {}
    bounds: dict[str, float] = {}
    shrinks: dict[str, float] = {}

    @property
    def default(self) -> Step:
        return Step(technique=self.technique, options={name: values[0] for name, values in self.options.items()})

    def variants(self) -> Iterator[Step]:
        """The default first, then each option moved alone."""
        yield self.default
        for name, values in self.options.items():
            for value in values[1:]:
                yield Step(technique=self.technique, options={**self.default.options, name: value})

    def bound(self, step: Step) -> float:
        return self.bounds.get(str(step), max(self.bounds.values(), default=1.0))


def offers_for(
    subject: Subject, machine: Machine, limits: Limits, profile: Profile, *, exclude: Sequence[str] = ()
) -> tuple[list[Offer], list[RefusedTechnique]]:
    """Ask every technique of the table whether it applies, with which options, and what it could gain at most."""
    offers = []
    refused = [RefusedTechnique(technique=name, reason=reason) for name, reason in FOLLOWING.items()]
    for name, technique in TABLE.items():
        if name in exclude:
            refused.append(RefusedTechnique(technique=name, reason="left out by --exclude"))
            continue
        if why := graph_refusal(technique, subject):
            refused.append(RefusedTechnique(technique=name, reason=why))
            continue
        options, detail, reason = _options_that_apply(technique, subject, machine)
        if options is None:
            refused.append(RefusedTechnique(technique=name, reason=reason))
            continue
        offer = Offer(technique=name, detail=detail, groups=sorted(technique.groups), options=options)
        offer.bounds = {
            str(step): technique.predict(profile, limits, technique.options(**step.options))
            for step in offer.variants()
        }
        offer.shrinks = {
            str(step): 1 / _weight_scale(technique, technique.options(**step.options)) for step in offer.variants()
        }
        offers.append(offer)
    if not is_in_process([offer.default for offer in offers]) and (why := program.refusal(subject)):
        # what keeps the model's code could not be saved, and nothing that works in process is there to take it
        refused += [RefusedTechnique(technique=offer.technique, reason=why) for offer in offers]
        offers = []
    return offers, refused


def _weight_scale(technique: Technique, options: Any) -> float:
    """Bytes of the weights that a technique leaves, as a fraction of float32's; 1.0 where it leaves them alone."""
    if technique.weight_scale_of is not None:
        return technique.weight_scale_of(options)
    if technique.dtype_of is not None:
        return element_bytes(technique.dtype_of(options)) / element_bytes("float32")
    return 1.0


def _options_that_apply(
    technique: Technique, subject: Subject, machine: Machine
) -> tuple[dict[str, list[Any]] | None, str, str]:
    """Values per option that the technique accepts here, the others at their defaults; None where none is accepted."""
    defaults = {name: values[0] for name, values in technique.space.items()}
    first = technique.check(subject, machine, technique.options(**defaults))
    if isinstance(first, Applies):
        return _accepted(technique, subject, machine, defaults), first.detail, ""
    # The default is refused; another value of one option may still be accepted (float32 where the chip has no bf16).
    for name, kept in _accepted(technique, subject, machine, defaults).items():
        if kept:
            chosen = {**defaults, name: kept[0]}
            verdict = technique.check(subject, machine, technique.options(**chosen))
            detail = verdict.detail if isinstance(verdict, Applies) else ""
            return {**_accepted(technique, subject, machine, chosen), name: kept}, detail, first.reason
    return None, "", first.reason


def _accepted(
    technique: Technique, subject: Subject, machine: Machine, others: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """The values of each option that the technique accepts, with all other options as in `others`."""
    return {
        name: [
            value
            for value in values
            if isinstance(technique.check(subject, machine, technique.options(**{**others, name: value})), Applies)
        ]
        for name, values in technique.space.items()
    }


class Space:
    """The recipes that can be made from the offers, as parameters of an Optuna study and back."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self.offers = {offer.technique: offer for offer in offers}
        self.backends = [o.technique for o in offers if BACKEND in o.groups]
        self.precisions = [o.technique for o in offers if PRECISION in o.groups and BACKEND not in o.groups]
        self.free = [o.technique for o in offers if not o.groups]

    @property
    def in_process(self) -> Step | None:
        """What every recipe needs where torch.export refuses the model: a backend that works in process."""
        return next((o.default for o in self.offers.values() if is_in_process([o.default])), None)

    def compatible(self, steps: Sequence[Step], other: Step) -> bool:
        """Whether a technique can join a recipe: not in it yet, and no group of it claimed."""
        claimed = {group for step in steps for group in self.offers[step.technique].groups}
        return other.technique not in {s.technique for s in steps} and not claimed & set(
            self.offers[other.technique].groups
        )

    def parameters(self, recipe: Recipe) -> dict[str, Any]:
        """A recipe as parameter values, for Optuna to enqueue."""
        values: dict[str, Any] = {BACKEND: NONE, PRECISION: NONE, **{f"use.{name}": False for name in self.free}}
        for step in recipe:
            name = step.technique
            if name in self.backends:
                values[BACKEND] = name
            elif name in self.precisions:
                values[PRECISION] = name
            else:
                values[f"use.{name}"] = True
            for option, chosen in {**self.offers[name].default.options, **step.options}.items():
                values[f"{name}.{option}"] = chosen
        return values

    def recipe(self, suggest: Suggest) -> Recipe:
        """The recipe that parameter values mean. `suggest(name, choices)` gives each value as it is asked for."""
        names: list[str] = [n for n in self.free if suggest(f"use.{n}", [False, True])]
        backend = suggest(BACKEND, self.backends if self.in_process is not None else [NONE, *self.backends])
        if backend != NONE:
            names.append(backend)
        if backend == NONE or PRECISION not in self.offers[backend].groups:
            precision = suggest(PRECISION, [NONE, *self.precisions])
            if precision != NONE:
                names.append(precision)
        steps = [Step(technique=n, options=self._suggest_options(n, suggest)) for n in names]
        return Recipe(steps=in_order(steps))

    def bound(self, steps: Sequence[Step]) -> float:
        """The most a recipe could gain: the product of its techniques' bounds, but no more than the best of them all.

        A bound that takes away the overhead and computes in the smallest dtype at the machine's limit leaves nothing
        for another technique to take away.
        """
        ceiling = max((bound for offer in self.offers.values() for bound in offer.bounds.values()), default=1.0)
        return min(ceiling, math.prod(self.offers[step.technique].bound(step) for step in steps))

    def shrink(self, steps: Sequence[Step]) -> float:
        """How many times smaller a recipe makes the weights: as much as the one of its steps that does most."""
        return max((self.offers[step.technique].shrinks.get(str(step), 1.0) for step in steps), default=1.0)

    def _suggest_options(self, name: str, suggest: Suggest) -> dict[str, Any]:
        return {option: suggest(f"{name}.{option}", values) for option, values in self.offers[name].options.items()}
