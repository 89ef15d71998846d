"""A search whose trials are arithmetic: what each technique gains and costs is written down here."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whet.core.recipe import Recipe, Step
from whet.core.signature import read_signature
from whet.measure.isolate import Failure, FailureKind, Function, Outcome
from whet.measure.machine import Limits, describe
from whet.profiling.model import Profile
from whet.tuner.facts import TargetFacts
from whet.tuner.goal import Goal
from whet.tuner.records import TrialRecord
from whet.tuner.result import Diagnosed
from whet.tuner.search import SearchTime, drop_losers, search_space, try_recipe
from whet.tuner.space import ApplicableTechnique, Space, Variant, steps_of
from whet.tuner.study import Study
from whet.tuner.trial import TrialRequest
from whet.tuner.trial_context import TrialContext

GAIN = {"inductor": 1.2, "bf16": 1.5, "int8_static": 3.0, "openvino": 2.0, "fuse_qkv": 1.1, "channels_last": 0.9}
LOSES_QUALITY = {"int8_static"}
RESTORES = {"keep_precision"}


def applicable(
    technique: str,
    *groups: str,
    options: Mapping[str, Sequence[Any]] | None = None,
    bounds: Sequence[float] = (1.0,),
    shrink: float = 1.0,
) -> ApplicableTechnique:
    """A technique whose variants gain at most what `bounds` says, in order; the last bound is that of all others."""
    steps = steps_of(technique, options or {})
    each = [*bounds, *[bounds[-1]] * len(steps)][: len(steps)]
    return ApplicableTechnique(
        technique=technique,
        detail="",
        groups=groups,
        options=options or {},
        variants=[Variant(step=step, bound=bound, shrink=shrink) for step, bound in zip(steps, each, strict=True)],
    )


def techniques() -> list[ApplicableTechnique]:
    return [
        applicable("fuse_qkv", bounds=[1.3]),
        applicable("keep_precision", options={"layers": [2, 4]}),
        applicable("bf16", "precision", bounds=[4.0]),
        applicable("int8_static", "precision", bounds=[8.0]),
        applicable("channels_last", bounds=[1.2]),
        applicable(
            "inductor", "backend", options={"engine": ["package", "jit"], "freezing": [True, False]}, bounds=[2.0]
        ),
        applicable("openvino", "backend", "precision", options={"precision": ["int8", "bf16"]}, bounds=[9.0, 5.0]),
    ]


class FakeRunner:
    """Answers `run_trial` by the tables above. crash: techniques whose process is killed; calls: recipes, in order."""

    def __init__(self, *, crash: frozenset[str] = frozenset(), interrupt_at: int | None = None) -> None:
        self.crash = crash
        self.interrupt_at = interrupt_at
        self.calls: list[list[Step]] = []

    def __call__(self, function: Function, request: TrialRequest, directory: Path, time_limit_s: float) -> Outcome:
        assert function.__name__ == "run_trial"
        steps = list(request.steps)
        if self.interrupt_at == len(self.calls):
            raise KeyboardInterrupt
        self.calls.append(steps)
        names = {step.technique for step in steps}
        if names & self.crash:
            return Outcome(None, Failure(FailureKind.CRASH, "the process was ended by SIGKILL"), 0.1, 0)
        speedup = 1.0
        for step in steps:
            speedup *= GAIN.get(step.technique, 1.0)
            if step.options.get("precision") == "bf16":
                speedup *= 0.8
        drop = 0.05 if names & LOSES_QUALITY and not names & RESTORES else 0.0
        rejected = drop > request.max_drop
        request.directory.mkdir(parents=True)
        value = {
            "status": "rejected" if rejected else "done",
            "reason": "quality drops" if rejected else "",
            "rejected_for": "quality" if rejected else None,
            "speedup": speedup,
            "speedup_ci95": [speedup * 0.98, speedup * 1.02],
            "latency_ms": 10 / speedup,
            "baseline_latency_ms": 10.0,
            "drop": drop,
            "quality": 1 - drop,
            "size_bytes": 1000,
            "build_s": 0.1,
        }
        return Outcome(value, None, 0.1, 0)


def facts(call_s: float = 0.01, num_batches: int = 1, **known: Any) -> TargetFacts:
    """What an examination would find, but for what `known` says: a call takes `call_s` seconds."""
    given: dict[str, Any] = {
        "name": "fake",
        "fingerprint": "f",
        "machine": describe(),
        "open_s": 0.5,
        "examined_s": 8.0,
        "applicable": techniques(),
        "refused": [],
        "signature": read_signature([torch.ones(1)], torch.ones(1)),
        "score": 1.0,
        "weights": "w",
        "quality_name": "accuracy",
        "num_samples": 1,
        "original_bytes": 1000,
        "num_threads": 1,
        "profiles": [(Profile(total_s=call_s, layers=(), dtype="float32"), num_batches)],
        "limits": Limits(read_bandwidth=1e10, gemm={"float32": 1e11}),
        "diagnosis": Diagnosed(sentence="", bound="compute", shares={}, share_of_limit=0.5),
    }
    return TargetFacts(**{**given, **known})


def context(directory: Path, runner: FakeRunner, **known: Any) -> TrialContext:
    return TrialContext("fake", facts(**known), directory, runner)


def search(context: TrialContext, study: Study, goal: Goal, limit: SearchTime, **options: Any) -> list[TrialRecord]:
    """Search as the kind for models does, without its processes."""
    space = Space(context.facts.applicable)

    def attempt(number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        return try_recipe(context, goal, number, recipe, space, left_s)

    return search_space(space, study, goal, limit, attempt, tidy=partial(drop_losers, context, goal), **options)
