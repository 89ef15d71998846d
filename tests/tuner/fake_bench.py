"""A workbench whose trials are arithmetic: what each technique gains and costs is written down here."""

from pathlib import Path
from typing import Any

import torch

from whet.machine import Limits, describe
from whet.measure.isolate import Failure, FailureKind, Function, Outcome
from whet.profiler import Profile
from whet.recipe import Step
from whet.signature import read_signature
from whet.tuner.facts import TargetFacts
from whet.tuner.result import Diagnosed
from whet.tuner.search import Workbench
from whet.tuner.space import Offer

GAIN = {"inductor": 1.2, "bf16": 1.5, "int8_static": 3.0, "openvino": 2.0, "fuse_qkv": 1.1, "channels_last": 0.9}
LOSES_QUALITY = {"int8_static"}
RESTORES = {"keep_precision"}


def offers() -> list[Offer]:
    return [
        Offer(technique="fuse_qkv", detail="", groups=[], bounds={"fuse_qkv": 1.3}),
        Offer(technique="keep_precision", detail="", groups=[], options={"layers": [2, 4]}),
        Offer(technique="bf16", detail="", groups=["precision"], bounds={"bf16": 4.0}),
        Offer(technique="int8_static", detail="", groups=["precision"], bounds={"int8_static": 8.0}),
        Offer(technique="channels_last", detail="", groups=[], bounds={"channels_last": 1.2}),
        Offer(
            technique="inductor",
            detail="",
            groups=["backend"],
            options={"engine": ["package", "jit"], "freezing": [True, False]},
            bounds={"x": 2.0},
        ),
        Offer(
            technique="openvino",
            detail="",
            groups=["backend", "precision"],
            options={"precision": ["int8", "bf16"]},
            bounds={"openvino(precision=int8)": 9.0, "openvino(precision=bf16)": 5.0},
        ),
    ]


class FakeRunner:
    """Answers `attempt` by the tables above. crash: techniques whose process is killed; calls: recipes, in order."""

    def __init__(self, *, crash: frozenset[str] = frozenset(), interrupt_at: int | None = None) -> None:
        self.crash = crash
        self.interrupt_at = interrupt_at
        self.calls: list[list[Step]] = []

    def __call__(self, function: Function, arguments: dict[str, Any], directory: Path, time_limit_s: float) -> Outcome:
        assert function.__name__ == "attempt"
        steps = [Step.model_validate(s) for s in arguments["steps"]]
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
        rejected = drop > arguments["max_drop"]
        Path(arguments["directory"]).mkdir(parents=True)
        value = {
            "status": "rejected" if rejected else "done",
            "reason": "quality drops" if rejected else "",
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
        "offers": offers(),
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


def bench(directory: Path, runner: FakeRunner, **known: Any) -> Workbench:
    return Workbench("fake", facts(**known), directory, runner)
