"""Replay a recipe on a target: the techniques that hold here, saved as an artefact or applied in this process."""

import contextlib
import io
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, Field
from torch import nn

from whet.artefact import MANIFEST, Artefact, load
from whet.errors import ArtefactError, OptionError, OutputError, TargetError
from whet.files import replace_directory, writable_parent
from whet.machine import describe
from whet.recipe import Recipe, Step
from whet.signature import Batch
from whet.tuner.build import build, in_order, is_in_process, options_of, refusals
from whet.tuner.in_process import as_artefact
from whet.tuner.reloading import reload_refusal
from whet.tuner.result import Agreement, QualityChange
from whet.tuner.search import isolated
from whet.tuner.trial import doubt_about_model, refuse, replay
from whet.tuner.tuning import workload_of
from whet.tuner.variant_process import INPUTS
from whet.workload import Workload, examine
from whet.workloads import resolve

_LOG = logging.getLogger("whet")

_LIMIT_S = 900.0


class Applied(BaseModel):
    """What came of applying a recipe.

    Attributes:
        out: The artefact's directory; "" where the recipe works in process, and nothing is saved.
        dropped: Steps that do not hold here, with reasons.
        differences: Of this machine from the one the recipe was proved on.
        doubts: Why the recipe would have been refused without force.
        drop: Of the quality, as a fraction of the original's; None without finite outputs.
        change: The drop's interval, where the quality is scored sample by sample.
        max_drop: That the recipe allows, if it says.
    """

    out: str
    steps: list[Step]
    dropped: list[tuple[Step, str]] = Field(default_factory=list)
    differences: list[str] = Field(default_factory=list)
    doubts: list[str] = Field(default_factory=list)
    size_bytes: int
    original_bytes: int
    quality_name: str
    quality_baseline: float | None = None
    quality: float | None = None
    drop: float | None = None
    change: QualityChange | None = None
    max_drop: float | None = None
    agreement: Agreement
    libraries: list[str] = Field(default_factory=list)  # what whet.load has to be given with `out`
    notes: list[str] = Field(default_factory=list)


def apply(
    recipe: str | os.PathLike[str] | Recipe,
    target: str | nn.Module | Workload,
    inputs: Batch | Sequence[Batch] | None = None,
    *,
    force: bool = False,
) -> Artefact:
    """Apply a recipe to a model in this process, and return what comes of it, to be called as the model.

    This is the way to use a recipe that cannot be saved, such as one with torch_compile. Its compiler runs here, on the
    inputs; the model must not change afterwards. Steps that do not hold here are left out, with a warning in the log.

    Args:
        recipe: A recipe, or the recipe.toml that `whet tune` wrote.
        target: A model, with `inputs`; or what `whet tune` takes as a target.
        inputs: One batch (a tensor, a tuple, a dict) or a list of batches, as for `whet.tune`.
        force: Apply the recipe of another model all the same.

    Returns:
        The model as the recipe makes it. Its quality is not judged: `whet tune` and `whet apply` do that.

    Raises:
        RecipeRefused: The recipe was made for another model.
        RecipeError: The recipe is damaged.
        TargetError: The model or its inputs cannot be used, or a step of the recipe fails on it.
    """
    plan = recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))
    steps = in_order(plan.steps)
    for step in steps:
        options_of(step)
    if isinstance(target, str | Workload):
        if inputs is not None:
            raise TargetError("inputs go with a model in memory; a named target or a Workload brings its own")
        workload = resolve(target) if isinstance(target, str) else target
    else:
        workload = workload_of(target, inputs)
    if doubt := doubt_about_model(plan.model, workload):
        refuse([doubt], force=force)
    subject = examine(workload, with_quality=False)
    with _without_torchs_output():
        refused = refusals(steps, subject, describe())
    for step, why in refused:
        _LOG.warning("left out %s: %s", step, why)
    names = {step.technique for step, _ in refused}
    candidate = build(subject, [step for step in steps if step.technique not in names])
    if candidate.is_in_process:
        return as_artefact(candidate)
    folder = Path(tempfile.mkdtemp(prefix="whet-applied-"))
    try:
        artefact = load(candidate.save(folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(artefact, shutil.rmtree, folder, ignore_errors=True)
    return artefact


@contextlib.contextmanager
def _without_torchs_output() -> Iterator[None]:
    """Keep from the user's terminal the graph that torch.export prints when it refuses a model; whet says why."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def apply_recipe(
    recipe: str | os.PathLike[str] | Recipe, target: str, out: str | os.PathLike[str] | None, *, force: bool = False
) -> Applied:
    """Apply a recipe to a target and save the result in a new directory `out`, for whet.load.

    A recipe made on another machine is applied as far as it holds; what differs and what was dropped is returned. A
    recipe that works in process is applied and judged in a process of its own, and nothing is saved.

    Args:
        recipe: A recipe, or the path of a recipe.toml.
        target: As for whet.tune.
        out: A directory that does not exist yet; None for a recipe that cannot be saved.
        force: Apply the recipe of another model, or one that costs more quality than it allows; the result's `doubts`
            say so.

    Raises:
        RecipeRefused: The recipe was made for another model, or the quality falls by more than it allows.
        RecipeError: The recipe is damaged.
        OutputError: `out` exists or cannot be written.
        ArtefactError: A fresh process cannot load and run the result.
    """
    plan = recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))
    for step in plan:
        options_of(step)
    if out is None and not is_in_process(plan.steps):
        raise OptionError("what the recipe makes of the model is saved: give --out, a new directory for it")
    directory = None if out is None else Path(out).absolute()
    if directory is not None and os.path.lexists(directory):
        raise OutputError(f"{directory} exists already; choose another --out")
    parent = None if directory is None else writable_parent(directory)
    with tempfile.TemporaryDirectory(prefix=".whet-", dir=parent) as scratch:
        arguments = {
            "target": target,
            "steps": [step.model_dump() for step in plan],
            "directory": f"{scratch}/artefact",
            "machine": dict(plan.machine) if plan.fingerprint else None,
            "model": plan.model,
            "max_drop": None if plan.evidence is None else plan.evidence.max_drop,
            "force": force,
        }
        run = isolated(describe().most_bytes)
        outcome = run(replay, arguments, Path(scratch), _LIMIT_S)
        if outcome.failure is not None:
            raise outcome.failure.as_error()
        assert outcome.value is not None
        value = outcome.value
        if not (Path(scratch) / "artefact" / MANIFEST).is_file():
            return Applied.model_validate({**value, "out": ""})
        if directory is None:
            raise OptionError("what holds of the recipe here can be saved: give --out, a new directory for it")
        if why := reload_refusal(
            run,
            Path(scratch) / "artefact",
            inputs=Path(scratch) / INPUTS,
            libraries=value["libraries"],
            places=value.pop("places"),
            num_threads=value.pop("num_threads"),
        ):
            raise ArtefactError(f"what the recipe makes of this model cannot be saved: {why}")
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{directory} cannot be made: {error.strerror}; choose another --out") from error
        replace_directory(Path(scratch) / "artefact", directory)
    allowed = None if plan.evidence is None else plan.evidence.max_drop
    return Applied.model_validate({**value, "out": str(directory), "max_drop": allowed})
