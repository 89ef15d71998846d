"""Apply a recipe to a target in a child process of `whet apply`, save the result and judge it."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from whet.core.recipe import Step
from whet.core.workload import Workload, examine, unseen_inputs
from whet.errors import RecipeRefused
from whet.measure.machine import describe
from whet.tuner.agreement import agree
from whet.tuner.batch import with_free_batch
from whet.tuner.build import refusals
from whet.tuner.goal import MAX_DROP
from whet.tuner.known_target import INPUTS, KEPT, write_inputs
from whet.tuner.records import Agreement, QualityChange
from whet.tuner.target_examination import AGREEMENT, architecture, checkpoint_bytes
from whet.tuner.trial import judge, make_variant
from whet.workloads.target import open_target


class ReplayRequest(BaseModel, frozen=True):
    """Tell a process which recipe to apply.

    Attributes:
        directory: Where the artefact is saved.
        machine: The machine that the recipe was made on; None where it is not known.
        model: The digest of the model that the recipe was made for; "" where it is not known.
        max_drop: The drop in quality that the recipe allows. None where it does not say: any drop of a score, and
            `MAX_DROP` where there is no score.
        force: Continue where the model is another one or the quality falls too far, and report that as a doubt.
    """

    target: str
    steps: tuple[Step, ...] = ()
    directory: Path
    machine: dict[str, Any] | None = None
    model: str = ""
    max_drop: float | None = None
    force: bool = False


class AppliedSteps(BaseModel, frozen=True):
    """Report what applying a recipe's steps gave.

    Attributes:
        steps: The steps that apply here.
        dropped: The steps that do not, with reasons.
        differences: How this machine differs from the one that the recipe was proved on.
        doubts: Why the recipe would have been refused without force.
        size_bytes: The result's size on disk.
        original_bytes: The size of the original's weights and buffers as safetensors.
        drop: The drop in quality, as a fraction of the original's; None without finite outputs.
        change: The drop's interval, where the quality is scored sample by sample.
        libraries: The libraries that whet.load needs with the artefact.
        notes: What the techniques report, and what the batches do not show.
    """

    steps: tuple[Step, ...]
    dropped: tuple[tuple[Step, str], ...] = ()
    differences: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    size_bytes: int
    original_bytes: int
    quality_name: str
    quality_baseline: float | None = None
    quality: float | None = None
    drop: float | None = None
    change: QualityChange | None = None
    agreement: Agreement
    libraries: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Replayed(AppliedSteps, frozen=True):
    """Report what the process that applied a recipe found.

    Attributes:
        sys_path: Where Python finds modules in the process that built the target.
        num_threads: The number of PyTorch's threads that the target's code leaves set.
    """

    sys_path: tuple[str, ...] = ()
    num_threads: int


def replay_recipe(request: ReplayRequest) -> Replayed:
    """Apply the steps that apply here, save the result, and judge its outputs. Nothing is timed.

    Raises:
        RecipeRefused: The recipe was made for another model, or the quality falls by more than it allows.
    """
    doubts: list[str] = []
    workload = open_target(request.target)
    if doubt := doubt_about_model(request.model, workload):
        doubts.append(doubt)
        refuse(doubts, force=request.force)
    examined, batch = with_free_batch(examine(workload))
    examined = replace(examined, kept_in=request.directory.parent / KEPT)  # a recipe may be built twice
    num_threads = torch.get_num_threads()  # the recipe may change it when it is loaded
    dropped = refusals(request.steps, examined, describe())
    names = {step.technique for step, _ in dropped}
    kept = tuple(step for step in request.steps if step.technique not in names)
    artefact, built, differs = make_variant(examined, kept, request.directory, batch)
    agreement = agree(examined, artefact.run)
    quality = examined.workload.quality
    unsaid = math.inf if quality else MAX_DROP  # a score is shown, but nobody sees that outputs are far off
    most = unsaid if request.max_drop is None else request.max_drop
    judgement = judge(examined, artefact, agreement, most, differs)
    if judgement.reason:
        doubts.append(judgement.reason)
        refuse(doubts, force=request.force)
    write_inputs(examined, request.directory.parent / INPUTS)
    return Replayed(
        **built.model_dump(exclude={"fixed_batch", "notes"}),
        notes=(*built.notes, *unseen_inputs(examined)),
        steps=kept,
        dropped=tuple(dropped),
        differences=tuple(describe().differences(request.machine)) if request.machine else (),
        doubts=tuple(doubts),
        original_bytes=checkpoint_bytes(examined.workload),
        quality_name=quality.name if quality else AGREEMENT,
        quality_baseline=examined.score,
        quality=judgement.quality,
        drop=judgement.drop,
        change=judgement.change,
        agreement=agreement,
        sys_path=tuple(str(Path(place).absolute()) for place in sys.path),
        num_threads=num_threads,
    )


def doubt_about_model(model: str, workload: Workload) -> str:
    """Return why a recipe for a model with this digest does not fit a workload; "" where it does, or with no digest."""
    if not model or model == architecture(workload):
        return ""
    return "the recipe was made for another model: its weights have other names, shapes or dtypes"


def refuse(doubts: list[str], *, force: bool) -> None:
    """Raise RecipeRefused with the doubts, unless the user forces the recipe."""
    if not force:
        raise RecipeRefused(f"not applied: {'; '.join(doubts)}. To apply it all the same, use --force (force=True)")
