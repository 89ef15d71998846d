"""Build, save, load, judge and time a recipe, in the child processes of a search.

The artefact as loaded back from disk is what is judged and timed, unless a recipe works in process.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor

from whet.core.artefact import Artefact, load
from whet.core.artefact.operators import libraries_of
from whet.core.recipe import Step
from whet.core.signature import FlatModel
from whet.core.workload import ExaminedWorkload, measure_score
from whet.errors import TargetError
from whet.files import size_bytes
from whet.measure.clock import measure_pairs
from whet.measure.machine import describe
from whet.measure.stats import paired_ratio
from whet.tuner.agreement import agree
from whet.tuner.batch import make
from whet.tuner.build import build, computes_in_few_bits, is_in_process, refusals
from whet.tuner.in_process import as_artefact
from whet.tuner.known_target import BatchDimension, KnownTarget
from whet.tuner.quality_change import quality_change
from whet.tuner.records import Agreement, Built, Judgement, Timing, TrialOutcome
from whet.tuner.reloading import ANSWERS, write_answers
from whet.tuner.target_examination import checkpoint_bytes
from whet.tuner.unseen_answers import difference
from whet.ui.figures import percent


class TrialRequest(BaseModel, frozen=True):
    """Tell the process of a trial what to try.

    Attributes:
        steps: The recipe; without steps, the original is saved.
        directory: Where the artefact is saved and loaded from.
        max_drop: The allowed drop in quality, as a fraction of the original's.
    """

    known: KnownTarget
    steps: tuple[Step, ...] = ()
    directory: Path
    max_drop: float = 0.0
    timing_s: float = 0.0


def run_trial(request: TrialRequest) -> TrialOutcome:
    """Build a recipe, save it, load it back, judge its outputs and time it beside the original."""
    examined = request.known.open()
    num_threads = torch.get_num_threads()  # a recipe may change it when it is loaded
    refused = refusals(request.steps, examined, describe())
    if refused:
        reasons = "; ".join(f"{step.technique}: {why}" for step, why in refused)
        return TrialOutcome(status="refused", reason=reasons)
    started = time.perf_counter()
    artefact, built, differs = make_variant(examined, request.steps, request.directory, request.known.batch)
    build_s = time.perf_counter() - started
    agreement = agree(examined, artefact.run)
    judgement = judge(examined, artefact, agreement, request.max_drop, differs)
    outcome = TrialOutcome(build_s=build_s, agreement=agreement, **dict(built), **dict(judgement))
    if judgement.drop is None:
        return outcome
    timing = time_pair(examined, artefact.run, request.timing_s, num_threads=num_threads)
    return outcome.model_copy(update=dict(timing))


def screen_again(request: TrialRequest) -> Timing:
    """Time a variant beside the original once more, as `run_trial` did: its artefact, or the result of its recipe."""
    examined = request.known.open()
    num_threads = torch.get_num_threads()
    rebuilds = is_in_process(request.steps)
    artefact = as_artefact(build(examined, request.steps)) if rebuilds else load(request.directory)
    return time_pair(examined, artefact.run, request.timing_s, num_threads=num_threads)


def save_original(request: TrialRequest) -> Built:
    """Save the original as an artefact, with its outputs for one batch beside it.

    Raises:
        TargetError: What was saved answers otherwise than the model.
    """
    examined = request.known.open()
    _, built, differs = make_variant(examined, (), request.directory, request.known.batch)
    if differs:
        raise TargetError(differs)
    return built


def make_variant(
    examined: ExaminedWorkload, steps: Sequence[Step], directory: Path, batch: BatchDimension
) -> tuple[Artefact, Built, str]:
    """Build a recipe, save it into `directory` and load it back.

    Beside the directory lie its outputs for the first batch. A recipe that works in process writes nothing.

    Returns:
        The loaded artefact, its description, and how it answers otherwise than the model on inputs that were not seen;
        "" where it doesn't.
    """
    rounds = computes_in_few_bits(examined, steps)
    if is_in_process(steps):
        candidate = build(examined, steps)
        artefact = as_artefact(candidate)
        differs = difference(candidate.examined, artefact.run, rounds=rounds, in_process=True)
        return artefact, Built(notes=candidate.notes, size_bytes=checkpoint_bytes(examined.workload)), differs
    made = make(examined, steps, directory, batch)
    write_answers(made.artefact.run, examined.flat_inputs[0], directory.parent / ANSWERS)
    built = Built(
        notes=made.notes,
        size_bytes=size_bytes(directory),
        libraries=tuple(libraries_of(made.artefact.manifest.operators)),
        fixed_batch=made.fixed_batch,
    )
    return made.artefact, built, difference(made.reference, made.artefact.run, rounds=rounds)


def judge(
    examined: ExaminedWorkload, predict: Callable[..., Any], agreement: Agreement, max_drop: float, differs: str = ""
) -> Judgement:
    """Score a variant and compare its quality with the limit.

    A variant has no quality if it returns NaN or infinity where the original does not, or if it answers inputs that
    were not seen otherwise (`differs` says how).
    """
    column = ""
    if agreement.distance is None:
        return Judgement(
            status="rejected",
            reason="its outputs hold NaN or infinity where the original's do not, or the other way round",
            rejected_for="outputs",
        )
    if differs:
        return Judgement(status="rejected", reason=differs, rejected_for="outputs")
    quality = examined.workload.quality
    change = None
    if quality is None or examined.score is None:
        name, value, drop = "agreement with the original", agreement.cosine, agreement.distance
        if agreement.column:
            times = f", {math.sqrt(drop / max_drop):.3g} times as much as may be" if max_drop else ""
            column = f": {agreement.column}{times}"
    else:
        score = measure_score(quality, predict)
        name, value, drop = quality.name, score.value, quality.drop(examined.score, score.value)
        change = quality_change(
            examined.sample_scores, score.samples, higher_is_better=quality.higher_is_better, max_drop=max_drop
        )
    if drop > max_drop:
        # The share of a column's spread has no upper end.
        by = "" if drop > 1 and column else f" by {percent(drop, decimals=1)}"
        reason = f"{name} drops{by}, more than the {percent(max_drop, decimals=1)} allowed{column}"
        return Judgement(
            status="rejected", reason=reason, rejected_for="quality", quality=value, drop=drop, change=change
        )
    return Judgement(status="done", quality=value, drop=drop, change=change)


def time_pair(examined: ExaminedWorkload, run: Callable[..., Any], timing_s: float, *, num_threads: int) -> Timing:
    """Time the original and a variant in interleaved blocks of this process.

    The original runs on `num_threads` of torch's threads, the variant on as many as are set now.
    """
    original = FlatModel(examined.workload.model, examined.signature).eval()
    threads = (num_threads, torch.get_num_threads())

    def call(which: int, function: Callable[..., Any], batch: tuple[Tensor, ...]) -> Any:
        if threads[0] != threads[1]:
            torch.set_num_threads(threads[which])
        return function(*batch)

    pairs = measure_pairs(
        [partial(call, 0, original, batch) for batch in examined.flat_inputs],
        [partial(call, 1, run, batch) for batch in examined.flat_inputs],
        budget_s=timing_s,
    )
    speedup, ci95 = paired_ratio(pairs.first, pairs.second)
    return Timing(
        baseline_latency_ms=sorted(pairs.first)[len(pairs.first) // 2] * 1e3,
        latency_ms=sorted(pairs.second)[len(pairs.second) // 2] * 1e3,
        speedup=speedup,
        speedup_ci95=ci95,
        busy=pairs.cause,
    )
