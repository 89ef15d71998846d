"""What runs in the child processes: look at a target once, try a recipe, replay one.

Everything here takes and returns plain JSON. What is measured is always the artefact as loaded back from disk.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from whet.artefact import load, program
from whet.files import size_bytes
from whet.machine import Limits, Machine, describe
from whet.machine.limits import element_bytes, load_limits
from whet.measure.clock import measure_pairs
from whet.measure.stats import paired_ratio
from whet.profiler import Profile, diagnose, profile_sizes
from whet.profiler.diagnosis import attainable_s
from whet.recipe import Step
from whet.signature import FlatModel, Signature
from whet.techniques.half import device_type
from whet.tuner.agreement import agree
from whet.tuner.build import build, refusals, technique_of
from whet.tuner.finalist import INPUTS, open_target, write_inputs
from whet.tuner.result import Agreement, Diagnosed, LayerRow
from whet.tuner.space import offers_for
from whet.workload import Subject, Workload, examine, measure_quality

AGREEMENT = "agreement (cosine)"  # stands in for a quality where the workload has none

_SIGNATURE = TypeAdapter(Signature)
_PROFILES = TypeAdapter(list[tuple[Profile, int]])
_STEPS = TypeAdapter(list[Step])


def look(target: str, directory: str, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """Check a target and say what there is to try: signature, score, profile, diagnosis, offers, refusals.

    Writes the inputs as safetensors into `directory`, for processes that have no need of the model's code.
    """
    started = time.perf_counter()
    workload = open_target(target)
    open_s = time.perf_counter() - started
    subject = examine(workload)
    weights = digest(workload)  # before more calls than one can count: some buffers are counters
    machine = describe()
    limits = load_limits(machine, device="cuda" if device_type(subject) == "cuda" else "cpu")
    profiles = profile_sizes(subject)
    profile = profiles[0][0]
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
        "weights": weights,
        "num_samples": workload.samples_per_batch,
        "original_bytes": checkpoint_bytes(workload),
        "offers": [offer.model_dump(mode="json") for offer in offers],
        "refused": [r.model_dump() for r in refused],
        "no_graph": program.refusal(subject),
        "exclude": list(exclude),
        "limits": TypeAdapter(Limits).dump_python(limits, mode="json"),
        "profiles": _PROFILES.dump_python(profiles, mode="json"),
        "diagnosis": Diagnosed(
            sentence=diagnosis.sentence,
            bound=str(diagnosis.bound),
            shares={str(k): v for k, v in diagnosis.shares.items()},
            share_of_limit=diagnosis.share_of_limit,
            layers=_layer_rows(profile, limits),
        ).model_dump(mode="json"),
        "machine": TypeAdapter(Machine).dump_python(machine, mode="json"),
        "fingerprint": machine.fingerprint,
        "num_threads": torch.get_num_threads(),
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
    subject = reopen(target, signature, with_effects=False)  # `look` found none
    num_threads = torch.get_num_threads()  # a recipe may set its own as it is loaded
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
    if drop is not None:
        result |= time_pair(subject, artefact.run, timing_s, num_threads=num_threads)
    return result


def replay(
    target: str, steps: list[dict[str, Any]], directory: str, machine: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Apply the steps that hold here, save the result, and judge its outputs. No timing. machine: the recipe's."""
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
        "differences": describe().differences(machine) if machine else [],
    }


def save_original(target: str, signature: dict[str, Any], directory: str) -> dict[str, Any]:
    """Save the original as an artefact, once it is known to load and to answer."""
    subject = reopen(target, signature)
    folder = build(subject, []).save(Path(directory))
    return {"agreement": agree(subject, load(folder).run).model_dump()}


def reopen(target: str, signature: dict[str, Any], *, with_effects: bool = True) -> Subject:
    """Open the subject again as `look` saw it, without scoring the original once more."""
    subject = examine(open_target(target), with_quality=False, with_effects=with_effects)
    return replace(subject, signature=_SIGNATURE.validate_python(signature))


def judge(
    subject: Subject, predict: Callable[..., Any], agreement: Agreement, score: float | None, max_drop: float
) -> tuple[float | None, float | None, str]:
    """(quality, drop, why it is rejected or ""). One that returns NaN or infinity has neither of the first two."""
    if agreement.distance is None:
        return None, None, "its outputs hold NaN or infinity"
    quality = subject.workload.quality
    if quality is None or score is None:
        value, name = agreement.cosine, "agreement with the original"
        drop = agreement.distance
    else:
        value, name = measure_quality(quality, predict), quality.name
        drop = quality.drop(score, value)
    if drop > max_drop:
        return value, drop, f"{name} drops by {drop:.1%}, more than the {max_drop:.1%} allowed"
    return value, drop, ""


def time_pair(subject: Subject, run: Callable[..., Any], timing_s: float, *, num_threads: int) -> dict[str, Any]:
    """Latency of the original and of a variant in interleaved blocks of this process: the original on `num_threads`
    of torch's, the variant on as many as are set now."""
    original = FlatModel(subject.workload.model, subject.signature).eval()
    threads = (num_threads, torch.get_num_threads())

    def call(which: int, function: Callable[..., Any], batch: tuple[Tensor, ...]) -> Any:
        if threads[0] != threads[1]:
            torch.set_num_threads(threads[which])
        return function(*batch)

    first, second = measure_pairs(
        [partial(call, 0, original, batch) for batch in subject.flat_inputs],
        [partial(call, 1, run, batch) for batch in subject.flat_inputs],
        budget_s=timing_s,
    )
    speedup, ci95 = paired_ratio(first, second)
    return {
        "baseline_latency_ms": sorted(first)[len(first) // 2] * 1e3,
        "latency_ms": sorted(second)[len(second) // 2] * 1e3,
        "speedup": speedup,
        "speedup_ci95": list(ci95),
    }


def mean_least_time_s(profiles: Sequence[tuple[Profile, int]], limits: Limits, steps: Sequence[Step]) -> float:
    """On average over batches, as latency is. profiles: for each size of batch, and how many batches are of it."""
    total_s = sum(count * least_time_s(profile, limits, steps) for profile, count in profiles)
    return total_s / sum(count for _, count in profiles)


def least_time_s(profile: Profile, limits: Limits, steps: Sequence[Step]) -> float:
    """The time the model's arithmetic and bytes need at this machine's limits, in the dtype a recipe computes in."""
    dtype, weight_scale = profile.dtype, None
    for step in steps:
        technique = technique_of(step)
        options = technique.Options(**step.options)
        if (dtype_of := getattr(technique, "dtype_of", None)) is not None:
            dtype = dtype_of(options)
        if (weight_scale_of := getattr(technique, "weight_scale_of", None)) is not None:
            weight_scale = weight_scale_of(options)
    scale = element_bytes(dtype) / element_bytes(profile.dtype)
    known = limits.faster(dtype)
    return sum(
        attainable_s(
            layer,
            limits,
            dtype=known,
            weight_scale=scale if weight_scale is None else weight_scale,
            activation_scale=scale,
        )
        for layer in profile.layers
    )


def checkpoint_bytes(workload: Workload) -> int:
    """What the original's weights and buffers take on disk as safetensors; tied ones count once."""
    tensors = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in workload.model.state_dict().values()
        if isinstance(t, Tensor)
    }
    return sum(tensors.values())


def digest(workload: Workload) -> str:
    """Of the model's weights and buffers, by which a search knows its model again."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in workload.model.state_dict().items():
        if isinstance(tensor, Tensor):
            found.update(name.encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


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
