"""Define the space of a search: the techniques that apply here, with their options and their bounds.

An ApplicableTechnique is small, plain data (JSON). A child process that has the model makes it once, and the study
keeps it. So the parent never builds the model, and every machine that shares a search chooses from the same space.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, model_validator

from whet.core.artefact import program
from whet.core.recipe import Recipe, Step
from whet.core.workload import ExaminedWorkload
from whet.measure.machine import Limits, Machine
from whet.measure.machine.limits import element_bytes
from whet.profiling.model import Profile
from whet.techniques import FOLLOWING, TABLE
from whet.techniques.applicability import options_that_apply
from whet.techniques.technique import BACKEND, PRECISION, AnyTechnique, Technique
from whet.tuner.build import graph_refusal, in_order, is_in_process
from whet.tuner.result import RefusedTechnique

NONE = "none"
COMPILE_ONLY = Step(technique="inductor", options={"engine": "jit", "freezing": False})
"""Compile the model as `torch.compile(model)` does."""
Suggest = Callable[[str, Sequence[Any]], Any]


class Variant(BaseModel, frozen=True):
    """Describe a technique with one choice of options.

    Attributes:
        bound: The highest speedup that it can reach.
        shrink: How many times smaller it makes the weights of a model, or the memory of a training step, at most.
    """

    step: Step
    bound: float = 1.0
    shrink: float = 1.0


class ApplicableTechnique(BaseModel, frozen=True):
    """Describe a technique that applies.

    Attributes:
        detail: What it would do here, in words.
        groups: What it chooses; two techniques of one group exclude each other.
        options: The values of each option that are accepted here, the default first.
        variants: The default, then each option changed alone.
    """

    technique: str
    detail: str
    groups: tuple[str, ...]
    options: dict[str, tuple[bool | int | float | str, ...]] = {}
    variants: tuple[Variant, ...]

    @model_validator(mode="before")
    @classmethod
    def _with_variants(cls, data: Any) -> Any:
        """Convert studies of earlier versions, which hold bounds and shrinks by the printed form of a step."""
        if not isinstance(data, Mapping) or "variants" in data or "technique" not in data:
            return data
        bounds, shrinks = data.get("bounds", {}), data.get("shrinks", {})
        most = max(bounds.values(), default=1.0)
        steps = steps_of(data["technique"], data.get("options", {}))
        variants = [Variant(step=s, bound=bounds.get(str(s), most), shrink=shrinks.get(str(s), 1.0)) for s in steps]
        kept = {name: value for name, value in data.items() if name not in ("bounds", "shrinks")}
        return {**kept, "variants": variants}

    @classmethod
    def of(
        cls,
        technique: AnyTechnique,
        options: Mapping[str, Sequence[Any]],
        detail: str,
        variant_of: Callable[[Step], Variant],
    ) -> "ApplicableTechnique":
        """Describe a technique that applies; `variant_of` returns a step with its bound and its effect on memory."""
        return cls(
            technique=technique.name,
            detail=detail,
            groups=tuple(sorted(technique.groups)),
            options={option: tuple(values) for option, values in options.items()},
            variants=tuple(variant_of(step) for step in steps_of(technique.name, options)),
        )

    @property
    def default(self) -> Step:
        return self.variants[0].step

    @property
    def steps(self) -> list[Step]:
        return [variant.step for variant in self.variants]

    @property
    def most(self) -> float:
        """Return the highest speedup that any variant can reach."""
        return max(variant.bound for variant in self.variants)

    @property
    def saves_memory(self) -> bool:
        return any(variant.shrink > 1 for variant in self.variants)

    def bound(self, step: Step) -> float:
        """Return the highest speedup that a step can reach; the highest of any, if several options were changed."""
        return next((variant.bound for variant in self.variants if variant.step == step), self.most)

    def shrink(self, step: Step) -> float:
        """Return how many times smaller a step makes the memory; 1.0 where several options were changed together."""
        return next((variant.shrink for variant in self.variants if variant.step == step), 1.0)


def steps_of(technique: str, options: Mapping[str, Sequence[Any]]) -> list[Step]:
    """Return a technique with its default options (the first of each), then with each option changed alone."""
    defaults = {name: values[0] for name, values in options.items()}
    changed = [{**defaults, name: value} for name, values in options.items() for value in values[1:]]
    return [Step(technique=technique, options=chosen) for chosen in [defaults, *changed]]


def applicable_techniques(
    examined: ExaminedWorkload, machine: Machine, limits: Limits, profile: Profile, *, exclude: Sequence[str] = ()
) -> tuple[list[ApplicableTechnique], list[RefusedTechnique]]:
    """Ask every technique of the table whether it applies, with which options, and what it could gain at most."""
    applicable: list[ApplicableTechnique] = []
    refused = [RefusedTechnique(technique=name, reason=reason) for name, reason in FOLLOWING.items()]
    for name, technique in TABLE.items():
        why = "left out by --exclude" if name in exclude else graph_refusal(technique, examined)
        why = why or _superseded(technique, examined, machine, exclude)
        options, detail, reason = (None, "", why) if why else options_that_apply(technique, examined, machine)
        if options is None:
            refused.append(RefusedTechnique(technique=name, reason=reason))
            continue
        make = partial(_variant, technique, profile=profile, limits=limits)
        applicable.append(ApplicableTechnique.of(technique, options, detail, make))
    if not is_in_process([entry.default for entry in applicable]) and (why := program.refusal(examined)):
        # Techniques that keep the model's code cannot be saved, and no backend that works in process is there.
        refused += [RefusedTechnique(technique=entry.technique, reason=why) for entry in applicable]
        applicable = []
    return applicable, refused


def _superseded(technique: Technique, examined: ExaminedWorkload, machine: Machine, exclude: Sequence[str]) -> str:
    """Return why a technique is not tried because another one that applies does the same faster, or ""."""
    if not technique.instead or technique.instead in exclude or program.refusal(examined):
        return ""
    options, _, _ = options_that_apply(TABLE[technique.instead], examined, machine)
    return "" if options is None else f"{technique.instead} does the same faster, and applies"


def _variant(technique: Technique, step: Step, profile: Profile, limits: Limits) -> Variant:
    options = technique.options(**step.options)
    shrink = 1 / _weight_scale(technique, options)
    return Variant(step=step, bound=technique.predict(profile, limits, options), shrink=shrink)


def _weight_scale(technique: Technique, options: Any) -> float:
    """Return the size of a technique's weights as a fraction of float32's; 1.0 where it leaves them alone."""
    if technique.work_scale_of is not None:
        return technique.work_scale_of(options)
    if technique.weight_scale_of is not None:
        return technique.weight_scale_of(options)
    if technique.dtype_of is not None:
        return element_bytes(technique.dtype_of(options)) / element_bytes("float32")
    return 1.0


class Space:
    """Hold the recipes that the applicable techniques can make, and convert them to and from Optuna's parameters.

    Attributes:
        table: Every technique of their kind.
        groups: The groups from which a recipe takes one technique at most, each with its techniques. A technique with
            several groups stands in the first of them.
        free: The techniques without a group.
        reference: The step that stands for torch.compile alone.
        original_bytes: The peak memory of the original; 0 where `shrink` speaks of the weights alone.
    """

    def __init__(
        self,
        applicable: Sequence[ApplicableTechnique],
        table: Mapping[str, AnyTechnique] = TABLE,
        reference: Step = COMPILE_ONLY,
        original_bytes: int = 0,
    ) -> None:
        self.reference = reference
        self.original_bytes = original_bytes
        self.techniques = {entry.technique: entry for entry in applicable}
        self.table = table
        names = dict.fromkeys((BACKEND, PRECISION)) | dict.fromkeys(g for t in applicable for g in t.groups)
        self.groups: dict[str, list[str]] = {name: [] for name in names}
        for entry in applicable:
            if entry.groups:
                self.groups[next(name for name in self.groups if name in entry.groups)].append(entry.technique)
        self.free = [t.technique for t in applicable if not t.groups]

    @property
    def backends(self) -> list[str]:
        """Return the techniques that run the model in another runtime."""
        return self.groups[BACKEND]

    @property
    def precisions(self) -> list[str]:
        """Return the techniques that only choose the precision."""
        return self.groups[PRECISION]

    @property
    def in_process(self) -> Step | None:
        """Return the in-process backend that every recipe needs where torch.export refuses the model, or None."""
        return next((t.default for t in self.techniques.values() if is_in_process([t.default])), None)

    def in_order(self, steps: Sequence[Step]) -> list[Step]:
        return in_order(steps, self.table)

    def compatible(self, steps: Sequence[Step], other: Step) -> bool:
        """Return whether a technique can join a recipe, which must lack it and claim none of its groups."""
        claimed = {group for step in steps for group in self.techniques[step.technique].groups}
        return other.technique not in {s.technique for s in steps} and not claimed & set(
            self.techniques[other.technique].groups
        )

    def parameters(self, recipe: Recipe) -> dict[str, Any]:
        """Return a recipe as parameter values, for Optuna to enqueue."""
        values: dict[str, Any] = {**dict.fromkeys(self.groups, NONE), **{f"use.{name}": False for name in self.free}}
        for step in recipe:
            name = step.technique
            group = next((group for group, members in self.groups.items() if name in members), None)
            if group is None:
                values[f"use.{name}"] = True
            else:
                values[group] = name
            for option, chosen in {**self.techniques[name].default.options, **step.options}.items():
                values[f"{name}.{option}"] = chosen
        return values

    def recipe(self, suggest: Suggest) -> Recipe:
        """Return the recipe that parameter values describe; `suggest(name, choices)` returns each parameter's value."""
        names: list[str] = [n for n in self.free if suggest(f"use.{n}", [False, True])]
        claimed: set[str] = set()
        for group, members in self.groups.items():
            if group in claimed:
                continue
            is_needed = group == BACKEND and self.in_process is not None
            chosen = suggest(group, members if is_needed else [NONE, *members])
            if chosen != NONE and not claimed & set(self.techniques[chosen].groups):
                names.append(chosen)
                claimed.update(self.techniques[chosen].groups)
        steps = [Step(technique=n, options=self._suggest_options(n, suggest)) for n in names]
        return Recipe(steps=tuple(self.in_order(steps)))

    def bound(self, steps: Sequence[Step]) -> float:
        """Return the highest speedup that a recipe can reach.

        It is the product of its techniques' bounds, but no more than the best bound of all techniques. That best bound,
        which takes away all overhead and computes in the smallest dtype at the machine's limit, leaves nothing for
        another technique to gain. Only a technique that leaves fewer operations gains beyond it.
        """
        fewer = [step for step in steps if self._leaves_fewer(step.technique)]
        others = [entry for name, entry in self.techniques.items() if not self._leaves_fewer(name)]
        ceiling = max((entry.most for entry in others), default=1.0)
        rest = math.prod(self.techniques[step.technique].bound(step) for step in steps if step not in fewer)
        return min(ceiling, rest) * math.prod(self.techniques[step.technique].bound(step) for step in fewer)

    def _leaves_fewer(self, name: str) -> bool:
        """Return whether a technique leaves fewer operations to compute."""
        return getattr(self.table[name], "work_scale_of", None) is not None

    def shrink(self, steps: Sequence[Step]) -> float:
        """Return how many times smaller a recipe makes the memory: the largest factor of any of its steps."""
        return max((self.techniques[step.technique].shrink(step) for step in steps), default=1.0)

    def choice(self, name: str, now_bytes: int | None = None, max_bytes: int | None = None) -> Step:
        """Return the step that a technique is tried with: its default, or what is enough for a limit of memory.

        Where a recipe needs more (`now_bytes`) than the limit (`max_bytes`), the choice that saves least is taken, of
        those with which it should fit: to save memory costs time. None for either takes the default.
        """
        entry = self.techniques[name]
        if not now_bytes or max_bytes is None or now_bytes <= max_bytes:
            return entry.default
        fits = [variant for variant in entry.variants if now_bytes / variant.shrink <= max_bytes]
        return min(fits, key=lambda variant: variant.shrink).step if fits else entry.default

    def _suggest_options(self, name: str, suggest: Suggest) -> dict[str, Any]:
        return {option: suggest(f"{name}.{option}", values) for option, values in self.techniques[name].options.items()}
