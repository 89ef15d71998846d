"""What runs in the child processes: look at a target once, try a recipe, replay one.

Everything here takes and returns plain JSON. What is measured is always the artefact as loaded back from disk.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from whet.artefact import load
from whet.errors import TargetError
from whet.files import size_bytes
from whet.machine import Limits, describe
from whet.machine.limits import load_limits
from whet.measure.clock import measure_pairs
from whet.measure.stats import compare
from whet.profiler import Profile, diagnose, profile_layers
from whet.profiler.diagnosis import attainable_s
from whet.recipe import Step
from whet.signature import FlatModel, Signature
from whet.tuner.build import build, refusals, technique_of
from whet.tuner.finalist import INPUTS, open_target, write_inputs
from whet.tuner.result import Agreement, Diagnosed, LayerRow
from whet.tuner.space import offers_for
from whet.workload import Subject, Workload, examine, measure_quality

AGREEMENT = "agreement (cosine)"  # stands in for a quality where the workload has none

_SIGNATURE = TypeAdapter(Signature)
_PROFILE = TypeAdapter(Profile)
_STEPS = TypeAdapter(list[Step])


def look(target: str, directory: str, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """Check a target and say what there is to try: signature, score, profile, diagnosis, offers, refusals.

    Writes the inputs as safetensors into `directory`, for processes that have no need of the model's code.
    """
    started = time.perf_counter()
    workload = open_target(target)
    open_s = time.perf_counter() - started
    subject = examine(workload)
    machine = describe()
    limits = load_limits(machine)
    profile = profile_layers(subject)
    offers, refused = offers_for(subject, machine, limits, profile, exclude=exclude)
    write_inputs(subject, Path(directory) / INPUTS)
    diagnosis = diagnose(profile, limits)
    quality = workload.quality
    return {
        "name": workload.name,
        "open_s": open_s,
        "signature": _SIGNATURE.dump_python(subject.signature, mode="json"),
        "score": subject.score,
        "quality_name": quality.name if quality else AGREEMENT,
        "higher_is_better": quality.higher_is_better if quality else True,
        "num_samples": workload.num_samples,
        "original_bytes": checkpoint_bytes(workload),
        "offers": [offer.model_dump(mode="json") for offer in offers],
        "refused": [r.model_dump() for r in refused],
        "limits": TypeAdapter(Limits).dump_python(limits, mode="json"),
        "profile": _PROFILE.dump_python(profile, mode="json"),
        "diagnosis": Diagnosed(
            sentence=diagnosis.sentence,
            bound=str(diagnosis.bound),
            shares={str(k): v for k, v in diagnosis.shares.items()},
            share_of_limit=diagnosis.share_of_limit,
            layers=_layer_rows(profile, limits),
        ).model_dump(mode="json"),
        "fingerprint": machine.fingerprint,
    }


def attempt(
    target: str,
    steps: list[dict[str, Any]],
    signature: dict[str, Any],
    directory: str,
    score: float | None,
    max_drop: float,
    timing_s: float,
) -> dict[str, Any]:
    """Build a recipe, save it into `directory`, load it back, judge its outputs and time it beside the original."""
    subject = reopen(target, signature)
    recipe = _STEPS.validate_python(steps)
    refused = refusals(recipe, subject, describe())
    if refused:
        return {"status": "refused", "reason": "; ".join(f"{step.technique}: {why}" for step, why in refused)}
    started = time.perf_counter()
    candidate = build(subject, recipe)
    folder = candidate.save(Path(directory))
    result: dict[str, Any] = {"build_s": time.perf_counter() - started, "notes": list(candidate.notes)}
    del candidate
    artefact = load(folder)
    result["size_bytes"] = size_bytes(folder)
    agreement = agree(subject, artefact.run)
    result["agreement"] = agreement.model_dump()
    quality, drop, reason = judge(subject, artefact, agreement, score, max_drop)
    result |= {"quality": quality, "drop": drop, "status": "rejected" if reason else "done", "reason": reason}
    if math.isfinite(drop):
        result |= time_pair(subject, artefact.run, timing_s)
    return result


def replay(target: str, steps: list[dict[str, Any]], directory: str) -> dict[str, Any]:
    """Apply the steps that hold here, save the result, and judge its outputs. No timing."""
    subject = examine(open_target(target))
    recipe = _STEPS.validate_python(steps)
    dropped = refusals(recipe, subject, describe())
    names = {step.technique for step, _ in dropped}
    kept = [step for step in recipe if step.technique not in names]
    candidate = build(subject, kept)
    folder = candidate.save(Path(directory))
    artefact = load(folder)
    agreement = agree(subject, artefact.run)
    quality = subject.workload.quality
    return {
        "steps": [step.model_dump() for step in kept],
        "dropped": [(step.model_dump(), reason) for step, reason in dropped],
        "size_bytes": size_bytes(folder),
        "original_bytes": checkpoint_bytes(subject.workload),
        "quality_name": quality.name if quality else AGREEMENT,
        "quality_baseline": subject.score,
        "quality": measure_quality(quality, artefact) if quality else agreement.cosine,
        "agreement": agreement.model_dump(),
        "notes": list(candidate.notes),
    }


def save_original(target: str, signature: dict[str, Any], directory: str) -> dict[str, Any]:
    """Save the original as an artefact, once it is known to load and to answer."""
    subject = reopen(target, signature)
    folder = build(subject, []).save(Path(directory))
    return {"agreement": agree(subject, load(folder).run).model_dump()}


def reopen(target: str, signature: dict[str, Any]) -> Subject:
    """The subject as `look` saw it, without scoring the original again."""
    subject = examine(open_target(target), with_quality=False)
    return replace(subject, signature=_SIGNATURE.validate_python(signature))


def judge(
    subject: Subject, predict: Callable[..., Any], agreement: Agreement, score: float | None, max_drop: float
) -> tuple[float | None, float, str]:
    """(quality, drop, why it is rejected or ""). A variant that returns NaN has an infinite drop."""
    if not math.isfinite(agreement.relative_error):
        return None, math.inf, "its outputs hold NaN or infinity"
    quality = subject.workload.quality
    if quality is None or score is None:
        value, name = agreement.cosine, "agreement with the original"
        drop = 1.0 - agreement.cosine
    else:
        value, name = measure_quality(quality, predict), quality.name
        drop = quality.drop(score, value)
    if drop > max_drop:
        return value, drop, f"{name} drops by {drop:.1%}, more than the {max_drop:.1%} allowed"
    return value, drop, ""


def agree(subject: Subject, run: Callable[..., Sequence[Tensor]]) -> Agreement:
    """How closely a variant's outputs on the calibration batches agree with the original's; the worst output counts."""
    num_outputs = len(subject.outputs[0])
    original: list[list[Tensor]] = [[] for _ in range(num_outputs)]
    variant: list[list[Tensor]] = [[] for _ in range(num_outputs)]
    for batch, outputs in zip(subject.flat_calibration, subject.outputs, strict=True):
        answers = run(*batch)
        if len(answers) != num_outputs:
            raise TargetError(f"the variant returned {len(answers)} tensors, the original {num_outputs}")
        for i, (a, b) in enumerate(zip(outputs, answers, strict=True)):
            original[i].append(a.double().flatten(0, -2) if a.dim() > 1 else a.double().reshape(1, -1))
            variant[i].append(b.double().reshape(original[i][-1].shape).clone())
    each = [_agreement(torch.cat(a), torch.cat(b)) for a, b in zip(original, variant, strict=True)]
    tops = [a.top1 for a in each if a.top1 is not None]
    return Agreement(
        relative_error=max((a.relative_error for a in each), key=lambda e: (math.isnan(e), e)),
        cosine=min(a.cosine for a in each),
        top1=min(tops) if tops else None,
    )


def _agreement(original: Tensor, variant: Tensor) -> Agreement:
    if not torch.isfinite(variant).all():
        return Agreement(relative_error=math.inf, cosine=0.0, top1=None)
    size = original.norm().item()
    error = (original - variant).norm().item()
    dot = (original * variant).sum().item()
    scale = size * variant.norm().item()
    has_rows = original.shape[-1] > 1
    return Agreement(
        relative_error=error / size if size else error,
        cosine=dot / scale if scale else float(error == 0),
        top1=(original.argmax(-1) == variant.argmax(-1)).double().mean().item() if has_rows else None,
    )


def time_pair(subject: Subject, run: Callable[..., Any], timing_s: float) -> dict[str, Any]:
    """Latency of the original and of a variant in interleaved blocks of this process."""
    original = FlatModel(subject.workload.model, subject.signature).eval()
    batches = subject.flat_inputs
    first, second = measure_pairs(
        [partial(original, *batch) for batch in batches],
        [partial(run, *batch) for batch in batches],
        budget_s=timing_s,
    )
    comparison = compare(first, second)
    return {
        "baseline_latency_ms": sorted(first)[len(first) // 2] * 1e3,
        "latency_ms": sorted(second)[len(second) // 2] * 1e3,
        "speedup": comparison.ratio,
        "speedup_ci95": list(comparison.ci95),
    }


def least_time_s(profile: Profile, limits: Limits, steps: Sequence[Step]) -> float:
    """The time the model's arithmetic and bytes need at this machine's limits, in the dtype a recipe computes in."""
    dtype = "float32"
    for step in steps:
        dtype_of = getattr(technique_of(step), "dtype_of", None)
        if dtype_of is not None:
            dtype = dtype_of(technique_of(step).Options(**step.options))
    scale = {"int8": 0.25, "bfloat16": 0.5, "float16": 0.5}.get(dtype, 1.0)
    known = dtype if dtype in limits.gemm else "float32"
    return sum(
        attainable_s(layer, limits, dtype=known, weight_scale=scale, activation_scale=scale) for layer in profile.layers
    )


def checkpoint_bytes(workload: Workload) -> int:
    """What the original's weights and buffers take on disk as safetensors; tied ones count once."""
    tensors = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in workload.model.state_dict().values()
    }
    return sum(tensors.values())


def _layer_rows(profile: Profile, limits: Limits) -> list[LayerRow]:
    rows = []
    for layer in profile.layers:
        alone = diagnose(Profile(total_s=layer.time_s, layers=(layer,), dtype=profile.dtype), limits)
        rows.append(
            LayerRow(
                name=layer.name,
                kind=layer.kind,
                calls=layer.calls,
                time_ms=layer.time_s * 1e3,
                flops=layer.flops,
                bytes=layer.weight_bytes + layer.activation_bytes,
                bound=str(alone.bound),
                share_of_limit=alone.share_of_limit,
            )
        )
    return rows
