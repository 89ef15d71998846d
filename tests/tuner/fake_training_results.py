"""Results as a tuned training would leave them, with figures of the size a small machine gives; none is measured."""

import math

from fake_results import LIMITS, MACHINE, VERSIONS

from whet.core.recipe import Step
from whet.techniques.costs.memory import StepMemory
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.proof.gradients import GradientProof
from whet.techniques.proof.loss_proof import LossPair, LossProof, judge
from whet.techniques.proof.updates import UpdateProof
from whet.tuner.records import TrainingEvidence, TrialRecord
from whet.tuner.result import LayerRow, MeasuredVariant, RefusedTechnique, Result, UntriedTechnique
from whet.tuner.training.words import diagnosed

AUTOCAST, FUSED, COMPILE = (Step(technique=name) for name in ("autocast", "fused_optimizer", "compile"))
ADAFACTOR = Step(technique="adafactor")
CHUNKED = Step(technique="chunked_loss", options={"chunks": 8})
PROFILE = StepProfile(
    total_s=0.346, data_s=0.0021, optimizer_s=0.0136, products_s=0.2492, attention_s=0.0412, loss_s=0.0107,
    other_s=0.0292, flops=41_000_000_000, num_operators=1_830, parameter_bytes=15_215_680, num_parameters=3_803_904,
)  # fmt: skip
LAYERS = [
    LayerRow(name="lm_head", kind="Linear", calls=1, time_ms=61.0, flops=6_442_000_000, bytes=61_000_000,
             bound="compute-bound", share_of_limit=0.71, backward_ms=41.0),
    *(
        LayerRow(name=f"layers.{i}.mlp.down_proj", kind="Linear", calls=1, time_ms=21.0, flops=2_013_000_000,
                 bytes=9_000_000, bound="compute-bound", share_of_limit=0.66, backward_ms=14.0)
        for i in range(12)
    ),
]  # fmt: skip
TOKENS = 2_048.0


def memory(other: int, *, optimizer: int = 30_431_420) -> StepMemory:
    """The memory of a step of the docs-gpt training, with so many bytes of activations and the rest."""
    known = 15_215_680 + 15_215_616 + optimizer
    return StepMemory(
        peak_bytes=known + other, parameter_bytes=15_215_680, gradient_bytes=15_215_616, optimizer_bytes=optimizer,
        other_bytes=other,
    )  # fmt: skip


def evidence(step_ms: float, other: int, *, is_exact: bool = True, joules: float | None = None) -> TrainingEvidence:
    """What was proved of a trial."""
    words = (
        "same gradients: relative error 9.1e-07 against float64 in layers.3.mlp.up_proj.weight; the original's own is "
        "9.3e-07"
        if is_exact
        else "same gradients, rounded: cosine 0.9999 at least (layers.4.self_attn.k_proj.weight), norms within 0.2% "
        "(layers.0.self_attn.q_proj.weight)"
    )
    return TrainingEvidence(
        gradients=GradientProof(is_same=True, words=words, error=9.1e-7, original_error=9.3e-7),
        updates=UpdateProof(is_same=True, words="same updates: lm_head.weight differs by 3.1e-05 of its change"),
        memory=memory(other),
        throughput_per_s=TOKENS / step_ms * 1e3,
        set_up_s=0.02 if is_exact else 31.4,
        joules_per_step=joules,
    )


def pairs(drops: list[float]) -> LossProof:
    """What pairs of runs prove whose losses differ by these parts."""
    made = [
        LossPair(
            seed=seed,
            old=4.2 + 0.01 * seed,
            new=(4.2 + 0.01 * seed) * (1 + drop),
            old_middle=5.1,
            new_middle=5.1 * (1 + 0.7 * drop),
            begin=7.6,
        )
        for seed, drop in enumerate(drops, 1)
    ]
    return judge(made, allowed=0.0025)


def trial(number: int, steps: list[Step], step_ms: float, other: int, **changes: object) -> TrialRecord:
    """A trial that was timed beside an original of 346 ms."""
    fields: dict[str, object] = {
        "number": number,
        "steps": tuple(steps),
        "status": "done",
        "predicted": 3.1,
        "latency_ms": step_ms,
        "baseline_latency_ms": 346.0,
        "speedup": 346.0 / step_ms,
        "build_s": 2.0,
        "training": evidence(step_ms, other, is_exact=AUTOCAST not in steps and COMPILE not in steps),
        "seconds": 12.0,
    }
    fields["peak_bytes"] = memory(other).peak_bytes
    return TrialRecord(**{**fields, **changes})  # type: ignore[arg-type]


def _trials() -> list[TrialRecord]:
    nothing = {"latency_ms": None, "baseline_latency_ms": None, "speedup": None, "peak_bytes": None, "training": None}
    return [
        trial(0, [COMPILE], 291.0, 320_000_000, notes=("compiled for batches of one size",)),
        trial(1, [AUTOCAST], 203.0, 348_000_000),
        trial(2, [AUTOCAST, FUSED, COMPILE], 139.0, 291_000_000),
        trial(3, [FUSED], 338.0, 421_000_000),
        trial(4, [CHUNKED], 349.0, 371_000_000),
        trial(
            5,
            [ADAFACTOR],
            361.0,
            391_000_000,
            status="failed",
            **nothing,
            reason="the loss of step 7 is nan",
        ),
        trial(
            6,
            [AUTOCAST, ADAFACTOR],
            1.0,
            1,
            status="rejected",
            rejected_for="quality",
            **nothing,
            reason="other gradients, rounded: cosine 0.9311 at least (lm_head.weight), norms within 4.1% (norm)",
        ),
    ]


def _point(steps: list[Step], step_ms: float, peak: int, **changes: object) -> MeasuredVariant:
    times = [step_ms * (1 + 0.01 * math.sin(i)) for i in range(8)]
    fields: dict[str, object] = {
        "steps": tuple(steps),
        "label": " + ".join(step.technique for step in steps) or "original",
        "latency_ms": step_ms,
        "throughput_per_s": TOKENS / step_ms * 1e3,
        "peak_bytes": peak,
        "size_bytes": 0,
        "process_latencies_ms": times,
        "speedup": 346.0 / step_ms,
        "speedup_ci95": (0.98 * 346.0 / step_ms, 1.02 * 346.0 / step_ms),
        "p_value": 0.0078,
        "verdict": "pass",
    }
    return MeasuredVariant(**{**fields, **changes})  # type: ignore[arg-type]


def gain(*, joules: float | None = None) -> Result:
    """A language model whose training becomes 2.5 times as fast, with everything that a report can show."""
    trials = _trials()
    if joules is not None:
        trials = [
            one.model_copy(update={"training": one.training.model_copy(update={"joules_per_step": joules})})
            if one.training
            else one
            for one in trials
        ]
    baseline = _point(
        [], 346.0, 490_000_000, verdict="", p_value=None, noise=1.02, training=evidence(346.0, 421_000_000)
    )
    best = _point(
        [AUTOCAST, FUSED, COMPILE], 138.0, 381_000_000, training=trials[2].training, number=2, is_smaller=True,
        losses=pairs([0.0002, -0.0003, 0.0001]),
    )  # fmt: skip
    surer = _point([FUSED], 335.0, 489_000_000, training=trials[3].training, number=3)
    alone = _point(
        [COMPILE], 291.0, memory(320_000_000).peak_bytes, verdict="screened", training=trials[0].training, p_value=None,
        process_latencies_ms=[], beside_ms=346.0,
    )  # fmt: skip
    return Result(
        kind="training",
        unit="tokens",
        target="docs-gpt-training",
        objective="throughput",
        max_drop=0.0025,
        verdict="gain",
        sentence=(
            "autocast + fused_optimizer + compile: 2.51x (2.46–2.56), 14,841 in place of 5,919 tokens a second, 381 MB "
            "in place of 490 MB."
        ),
        quality_name="held-out loss",
        higher_is_better=False,
        baseline=baseline,
        compile_only=alone,
        best=best,
        finalists=[best, surer],
        trials=trials,
        refused=[RefusedTechnique(technique="channels_last", reason="the model holds no convolutions")],
        untried=[UntriedTechnique(technique="checkpointing", bound=1.0, reason="it cannot make a step faster")],
        diagnosis=diagnosed(PROFILE.total_s, PROFILE.shares, share_of_limit=0.0).model_copy(update={"layers": LAYERS}),
        profile=PROFILE,
        machine=MACHINE,
        fingerprint="3fa91c07be52",
        limits=LIMITS,
        versions=VERSIONS,
        command="whet tune docs-gpt-training --budget 600s",
        started_at="2026-03-04T10:11:12+00:00",
        seconds=540.0,
        out="trained",
    )


def no_gain() -> Result:
    """A training that nothing makes faster, as an earlier version wrote it: without seconds, set-up and memory."""
    trials = [_trials()[5]]
    baseline = _point([], 346.0, 490_000_000, verdict="", p_value=None)
    return Result(
        kind="training",
        unit="samples",
        target="train.py:workload",
        objective="memory",
        max_drop=0.0025,
        max_memory_bytes=300_000_000,
        verdict="no-gain",
        sentence="No recipe trains as the original does and is faster. The original stays.",
        quality_name="training loss",
        higher_is_better=False,
        baseline=baseline,
        best=baseline,
        trials=trials,
    )


def worse() -> Result:
    """A recipe that was faster and trained worse: one run failed."""
    result = gain()
    failed = LossPair(seed=2, old=4.2, new=math.inf, old_middle=5.1, new_middle=math.inf, begin=7.6)
    proof = judge([*pairs([0.01]).pairs, failed], allowed=0.0025)
    proof = proof.model_copy(update={"failure": "the loss of step 31 is nan (seed 2)"})
    result.finalists[0].losses = proof
    result.best, result.verdict = result.baseline, "no-gain"
    result.sentence = f"{result.finalists[0].label} is better, but {proof.words}. The original stays."
    return result
