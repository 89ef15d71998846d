"""What runs in the child processes: look at a target once, try a recipe, replay one.

Everything here takes and returns plain JSON. What is measured is always the artefact as loaded back from disk.
"""

import hashlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from whet.artefact import Artefact, load, program
from whet.artefact.operators import libraries_of
from whet.errors import RecipeRefused
from whet.files import size_bytes
from whet.machine import Limits, describe
from whet.machine.limits import element_bytes, load_limits
from whet.measure.clock import measure_pairs
from whet.measure.quiet import undisturbed
from whet.measure.stats import paired_ratio
from whet.profiler import Profile, diagnose, least_time_s, profile_sizes
from whet.recipe import Step
from whet.signature import FlatModel, Signature
from whet.tuner.agreement import agree
from whet.tuner.batch import BatchDimension, make, with_free_batch
from whet.tuner.build import build, is_in_process, refusals, technique_of
from whet.tuner.facts import TargetFacts
from whet.tuner.in_process import as_artefact
from whet.tuner.quality_change import quality_change
from whet.tuner.reloading import ANSWERS, write_answers
from whet.tuner.result import Agreement, Diagnosed, LayerRow
from whet.tuner.space import offers_for
from whet.tuner.variant_process import INPUTS, write_inputs
from whet.workload import Subject, Workload, examine, measure_score
from whet.workloads.handover import open_target

AGREEMENT = "agreement (cosine)"  # stands in for a quality where the workload has none

_SIGNATURE = TypeAdapter(Signature)
_STEPS = TypeAdapter(list[Step])


def look(target: str, directory: str, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """Check a target and say what there is to try: signature, score, profile, diagnosis, offers, refusals.

    Writes the inputs as safetensors into `directory`, for processes that have no need of the model's code.
    """
    started = time.perf_counter()
    workload = open_target(target)
    open_s = time.perf_counter() - started
    subject, batch = with_free_batch(examine(workload))
    weights = digest(workload)  # before more calls than one can count: some buffers are counters
    machine = describe()
    began = time.perf_counter()
    limits = load_limits(machine, device="cuda" if subject.device_type == "cuda" else "cpu")
    limits_s = time.perf_counter() - began  # spent once on each machine
    profiles, busy = undisturbed(lambda: profile_sizes(subject))
    profile = profiles[0][0]
    offers, refused = offers_for(subject, machine, limits, profile, exclude=exclude)
    write_inputs(subject, Path(directory) / INPUTS)
    diagnosis = diagnose(profile, limits)
    quality = workload.quality
    facts = TargetFacts(
        name=workload.name,
        open_s=open_s,
        examined_s=time.perf_counter() - started - limits_s,
        limits_s=limits_s,
        signature=subject.signature,
        batch=batch,
        score=subject.score,
        sample_scores=list(subject.sample_scores),
        quality_name=quality.name if quality else AGREEMENT,
        higher_is_better=quality.higher_is_better if quality else True,
        weights=weights,
        model=architecture(workload),
        num_samples=workload.samples_per_batch,
        original_bytes=checkpoint_bytes(workload),
        offers=offers,
        refused=refused,
        no_graph=program.refusal(subject),
        exclude=list(exclude),
        limits=limits,
        profiles=profiles,
        diagnosis=Diagnosed(
            sentence=f"Measured on a busy machine: {diagnosis.sentence}" if busy else diagnosis.sentence,
            bound=str(diagnosis.bound),
            shares={str(k): v for k, v in diagnosis.shares.items()},
            share_of_limit=diagnosis.share_of_limit,
            layers=_layer_rows(profile, limits),
        ),
        machine=machine,
        fingerprint=machine.fingerprint,
        num_threads=torch.get_num_threads(),
        busy=busy,
        sys_path=[str(Path(place).absolute()) for place in sys.path],
    )
    return facts.model_dump(mode="json")


def attempt(
    target: str,
    steps: list[dict[str, Any]],
    signature: dict[str, Any],
    directory: str,
    score: float | None,
    max_drop: float,
    timing_s: float,
    sample_scores: Sequence[float] = (),
    batch: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Build a recipe, save it into `directory`, load it back, judge its outputs and time it beside the original.

    A recipe that works in process is judged and timed as it is, and nothing is saved.
    """
    subject = reopen(target, signature, with_effects=False)  # `look` found none
    subject = replace(subject, score=score, sample_scores=tuple(sample_scores))
    num_threads = torch.get_num_threads()  # a recipe may set its own as it is loaded
    recipe = _STEPS.validate_python(steps)
    refused = refusals(recipe, subject, describe())
    if refused:
        return {"status": "refused", "reason": "; ".join(f"{step.technique}: {why}" for step, why in refused)}
    started = time.perf_counter()
    artefact, facts = _made(subject, recipe, Path(directory), BatchDimension.model_validate(batch or {}))
    result: dict[str, Any] = {"build_s": time.perf_counter() - started, **facts}
    agreement = agree(subject, artefact.run)
    result["agreement"] = agreement.model_dump()
    judged = judge(subject, artefact, agreement, max_drop)
    result |= judged
    if judged["drop"] is not None:
        result |= time_pair(subject, artefact.run, timing_s, num_threads=num_threads)
    return result


def screen(
    target: str, signature: dict[str, Any], steps: list[dict[str, Any]], directory: str, timing_s: float
) -> dict[str, Any]:
    """Time a variant beside the original once more, as `attempt` did: its artefact, or what its recipe makes."""
    subject = reopen(target, signature)
    num_threads = torch.get_num_threads()
    recipe = _STEPS.validate_python(steps)
    artefact = as_artefact(build(subject, recipe)) if is_in_process(recipe) else load(Path(directory))
    return time_pair(subject, artefact.run, timing_s, num_threads=num_threads)


def _made(
    subject: Subject, steps: Sequence[Step], directory: Path, batch: BatchDimension
) -> tuple[Artefact, dict[str, Any]]:
    """Return what a recipe makes of a subject, as loaded back from `directory`, and what a TrialRecord holds of it.

    Beside the directory lies what it answers to the first batch. A recipe that works in process writes nothing.
    """
    if is_in_process(steps):
        candidate = build(subject, steps)
        size = checkpoint_bytes(subject.workload)
        return as_artefact(candidate), {"notes": list(candidate.notes), "size_bytes": size, "libraries": []}
    made = make(subject, steps, directory, batch)
    write_answers(made.artefact.run, subject.flat_inputs[0], directory.parent / ANSWERS)
    return made.artefact, {
        "notes": list(made.notes),
        "size_bytes": size_bytes(directory),
        "libraries": libraries_of(made.artefact.manifest.operators),
        "fixed_batch": made.fixed_batch,
    }


def replay(
    target: str,
    steps: list[dict[str, Any]],
    directory: str,
    machine: dict[str, Any] | None = None,
    model: str = "",
    max_drop: float | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Apply the steps that hold here, save the result, and judge its outputs. Nothing is timed.

    machine: the one that the recipe was made on. model: the digest of the model it was made for. max_drop: that it
    allows. force: go on where one of these two does not hold, and return that as a doubt.

    Raises:
        RecipeRefused: The recipe was made for another model, or the quality falls by more than it allows.
    """
    doubts: list[str] = []
    workload = open_target(target)
    if doubt := doubt_about_model(model, workload):
        doubts.append(doubt)
        refuse(doubts, force=force)
    subject, batch = with_free_batch(examine(workload))
    num_threads = torch.get_num_threads()  # the recipe may set its own as it is loaded
    recipe = _STEPS.validate_python(steps)
    dropped = refusals(recipe, subject, describe())
    names = {step.technique for step, _ in dropped}
    kept = [step for step in recipe if step.technique not in names]
    artefact, facts = _made(subject, kept, Path(directory), batch)
    agreement = agree(subject, artefact.run)
    judged = judge(subject, artefact, agreement, math.inf if max_drop is None else max_drop)
    if judged["reason"]:
        doubts.append(judged["reason"])
        refuse(doubts, force=force)
    quality = subject.workload.quality
    write_inputs(subject, Path(directory).parent / INPUTS)
    return {
        **facts,
        "doubts": doubts,
        "places": [str(Path(place).absolute()) for place in sys.path],
        "num_threads": num_threads,
        "steps": [step.model_dump() for step in kept],
        "dropped": [(step.model_dump(), reason) for step, reason in dropped],
        "original_bytes": checkpoint_bytes(subject.workload),
        "quality_name": quality.name if quality else AGREEMENT,
        "quality_baseline": subject.score,
        "quality": judged["quality"],
        "drop": judged["drop"],
        "change": judged["change"],
        "agreement": agreement.model_dump(),
        "differences": describe().differences(machine) if machine else [],
    }


def doubt_about_model(model: str, workload: Workload) -> str:
    """Return why a recipe made for the model of this digest is not for this workload; "" where it is, or names none."""
    if not model or model == architecture(workload):
        return ""
    return "the recipe was made for another model: its weights have other names, shapes or dtypes"


def refuse(doubts: list[str], *, force: bool) -> None:
    """Raise RecipeRefused with the doubts, unless the user wants the recipe applied all the same."""
    if not force:
        raise RecipeRefused(f"not applied: {'; '.join(doubts)}. To apply it all the same, use --force (force=True)")


def save_original(
    target: str, signature: dict[str, Any], directory: str, batch: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Save the original as an artefact, and its answers beside that."""
    subject = reopen(target, signature)
    artefact, facts = _made(subject, [], Path(directory), BatchDimension.model_validate(batch or {}))
    return {"agreement": agree(subject, artefact.run).model_dump(), **facts}


def reopen(target: str, signature: dict[str, Any], *, with_effects: bool = True) -> Subject:
    """Open the subject again as `look` saw it, without scoring the original once more."""
    subject = examine(open_target(target), with_quality=False, with_effects=with_effects)
    return replace(subject, signature=_SIGNATURE.validate_python(signature))


def judge(subject: Subject, predict: Callable[..., Any], agreement: Agreement, max_drop: float) -> dict[str, Any]:
    """Score a variant and hold its quality against the limit.

    Returns:
        The fields of a TrialRecord: quality, drop, change, status ("done" or "rejected") and reason. A variant that
        returns NaN or infinity has no quality.
    """
    found: dict[str, Any] = {"quality": None, "drop": None, "change": None, "status": "rejected"}
    if agreement.distance is None:
        return {
            **found,
            "reason": "its outputs hold NaN or infinity where the original's do not, or the other way round",
        }
    quality = subject.workload.quality
    if quality is None or subject.score is None:
        name = "agreement with the original"
        found |= {"quality": agreement.cosine, "drop": agreement.distance}
    else:
        name, score = quality.name, measure_score(quality, predict)
        change = quality_change(
            subject.sample_scores, score.samples, higher_is_better=quality.higher_is_better, max_drop=max_drop
        )
        found |= {"quality": score.value, "drop": quality.drop(subject.score, score.value)}
        found["change"] = None if change is None else change.model_dump(mode="json")
    if found["drop"] > max_drop:
        return {**found, "reason": f"{name} drops by {found['drop']:.1%}, more than the {max_drop:.1%} allowed"}
    return {**found, "status": "done", "reason": ""}


def time_pair(subject: Subject, run: Callable[..., Any], timing_s: float, *, num_threads: int) -> dict[str, Any]:
    """Latency of the original and of a variant in interleaved blocks of this process: the original on `num_threads`
    of torch's, the variant on as many as are set now."""
    original = FlatModel(subject.workload.model, subject.signature).eval()
    threads = (num_threads, torch.get_num_threads())

    def call(which: int, function: Callable[..., Any], batch: tuple[Tensor, ...]) -> Any:
        if threads[0] != threads[1]:
            torch.set_num_threads(threads[which])
        return function(*batch)

    pairs = measure_pairs(
        [partial(call, 0, original, batch) for batch in subject.flat_inputs],
        [partial(call, 1, run, batch) for batch in subject.flat_inputs],
        budget_s=timing_s,
    )
    speedup, ci95 = paired_ratio(pairs.first, pairs.second)
    return {
        "baseline_latency_ms": sorted(pairs.first)[len(pairs.first) // 2] * 1e3,
        "latency_ms": sorted(pairs.second)[len(pairs.second) // 2] * 1e3,
        "speedup": speedup,
        "speedup_ci95": list(ci95),
        "busy": pairs.cause,
    }


def mean_least_time_s(profiles: Sequence[tuple[Profile, int]], limits: Limits, steps: Sequence[Step]) -> float:
    """On average over batches, as latency is. profiles: for each size of batch, and how many batches are of it."""
    total_s = sum(count * recipe_time_s(profile, limits, steps) for profile, count in profiles)
    return total_s / sum(count for _, count in profiles)


def recipe_time_s(profile: Profile, limits: Limits, steps: Sequence[Step]) -> float:
    """The time the model's arithmetic and bytes need at this machine's limits, in the dtype a recipe computes in."""
    dtype, weight_scale = profile.dtype, None
    for step in steps:
        technique = technique_of(step)
        options = technique.options(**step.options)
        if technique.dtype_of is not None:
            dtype = technique.dtype_of(options)
        if technique.weight_scale_of is not None:
            weight_scale = technique.weight_scale_of(options)
    scale = element_bytes(dtype) / element_bytes(profile.dtype)
    return least_time_s(
        profile,
        limits,
        dtype=limits.faster(dtype),
        weight_scale=scale if weight_scale is None else weight_scale,
        activation_scale=scale,
    )


def checkpoint_bytes(workload: Workload) -> int:
    """What the original's weights and buffers take on disk as safetensors; tied ones count once."""
    tensors = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in workload.model.state_dict().values()
        if isinstance(t, Tensor)
    }
    return sum(tensors.values())


def architecture(workload: Workload) -> str:
    """Return a digest of the names, shapes and dtypes of the weights and buffers: the same after more training."""
    tensors = ((name, t) for name, t in workload.model.state_dict().items() if isinstance(t, Tensor))
    found = "\n".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors)
    return hashlib.blake2b(found.encode(), digest_size=8).hexdigest()


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
