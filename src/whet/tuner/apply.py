"""Apply a recipe to a target: save the result of the techniques that apply here, or use it in this process."""

import contextlib
import io
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from whet.core.artefact import MANIFEST, Artefact
from whet.core.recipe import Recipe
from whet.core.signature import Batch
from whet.core.workload import Workload, examine
from whet.errors import ArtefactError, OptionError, OutputError, TargetError
from whet.files import check_new_directory, replace_directory, writable_parent
from whet.measure.machine import describe
from whet.tuner.batch import with_free_batch
from whet.tuner.budget import Runner
from whet.tuner.build import in_order, is_in_process, options_of, refusals
from whet.tuner.known_target import INPUTS, KEPT
from whet.tuner.prepared_target import workload_of
from whet.tuner.processes import isolated
from whet.tuner.recipe_replay import AppliedSteps, Replayed, ReplayRequest, doubt_about_model, refuse, replay_recipe
from whet.tuner.reloading import ReloadRequest, refusal, reload_failure
from whet.tuner.trial import make_variant
from whet.ui.notebook import Shown
from whet.workloads import resolve
from whet.workloads.text_encoder import save_text_use

_LOG = logging.getLogger("whet")

_LIMIT_S = 900.0


class Applied(Shown, AppliedSteps, frozen=True):
    """Report what applying a recipe gave.

    Attributes:
        out: The artefact's directory; "" where the recipe works in process, and nothing is saved.
        max_drop: The drop in quality that the recipe allows; None where it does not say.
    """

    out: str
    max_drop: float | None = None


def apply(
    recipe: str | os.PathLike[str] | Recipe,
    target: str | nn.Module | Workload,
    inputs: Batch | Sequence[Batch] | None = None,
    *,
    force: bool = False,
) -> Artefact:
    """Apply a recipe to a model in this process, and return the result, which is called like the model.

    This is the way to use a recipe that cannot be saved, such as one with torch_compile. Its compiler runs here, on the
    inputs; the model must not change afterwards. Steps that do not apply here are left out, with a warning in the log.

    Args:
        recipe: A recipe, or the recipe.toml that `whet tune` wrote.
        target: A model, with `inputs`; or what `whet tune` takes as a target.
        inputs: One batch (a tensor, a tuple, a dict) or a list of batches, as for `whet.tune`.
        force: Apply the recipe even if it was made for another model, or if the result answers inputs that were not
            seen otherwise than the model.

    Returns:
        The model as the recipe makes it, for any batch size where it can be. Its quality is not judged: `whet tune` and
        `whet apply` do that.

    Raises:
        RecipeRefused: The recipe was made for another model, or the result answers inputs that were not seen otherwise.
        RecipeError: The recipe is damaged.
        TargetError: The model or its inputs cannot be used, or a step of the recipe fails on it.
    """
    plan = (recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))).checked_for("inference")
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
    examined, batch = with_free_batch(examine(workload, with_quality=False))
    with _without_torchs_output():
        refused = refusals(steps, examined, describe())
    for step, why in refused:
        _LOG.warning("left out %s: %s", step, why)
    names = {step.technique for step, _ in refused}
    folder = Path(tempfile.mkdtemp(prefix="whet-applied-"))
    try:
        kept = [step for step in steps if step.technique not in names]
        artefact, _, differs = make_variant(replace(examined, kept_in=folder / KEPT), kept, folder / "model", batch)
        if differs:
            refuse([differs], force=force)
            _LOG.warning("%s", differs)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(artefact, shutil.rmtree, folder, ignore_errors=True)
    return artefact


@contextlib.contextmanager
def _without_torchs_output() -> Iterator[None]:
    """Hide the graph that torch.export prints when it refuses a model. whet tells the user the reason itself."""
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

    Of a recipe from another machine, the steps that apply here are used. The result says how the machines differ and
    which steps were left out. A recipe that works in process is applied and judged in a child process, and nothing is
    saved.

    Args:
        recipe: A recipe, or the path of a recipe.toml.
        target: What whet.tune takes as a target.
        out: A directory that does not exist yet; None for a recipe that cannot be saved.
        force: Apply the recipe even if it was made for another model, or costs more quality than it allows; the
            result's `doubts` say so.

    Raises:
        RecipeRefused: The recipe was made for another model, or the quality falls by more than it allows.
        RecipeError: The recipe is damaged.
        OptionError: The result can be saved, and `out` is missing.
        OutputError: `out` exists or cannot be written.
        ArtefactError: A fresh process cannot load and run the result.
    """
    plan = (recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))).checked_for("inference")
    for step in plan:
        options_of(step)
    if out is None and not is_in_process(plan.steps):
        raise OptionError("this recipe makes a model that can be saved: give --out, a new directory for it")
    directory = None if out is None else Path(out).absolute()
    if directory is not None:
        check_new_directory(directory)
    parent = None if directory is None else writable_parent(directory)
    with tempfile.TemporaryDirectory(prefix=".whet-", dir=parent) as scratch:
        artefact = Path(scratch) / "artefact"
        run = isolated(describe().most_bytes)
        found = _replayed(run, plan, target, artefact, force=force)
        if not (artefact / MANIFEST).is_file():
            return _applied(found, None, plan)
        if directory is None:
            raise OptionError(
                "with the steps that apply here, the model can be saved: give --out, a new directory for it"
            )
        request = ReloadRequest(
            directory=artefact,
            inputs=artefact.parent / INPUTS,
            libraries=found.libraries,
            sys_path=found.sys_path,
            num_threads=found.num_threads,
        )
        failure = reload_failure(run, request)
        if failure is not None:
            raise ArtefactError(f"the model that this recipe makes cannot be saved: {refusal(failure)}")
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{directory} cannot be made: {error.strerror}; choose another --out") from error
        save_text_use(target, artefact)
        replace_directory(artefact, directory)
    return _applied(found, directory, plan)


def _replayed(run: Runner, plan: Recipe, target: str, artefact: Path, *, force: bool) -> Replayed:
    """Apply a recipe in a child process, which saves the result.

    Raises:
        WhetError: The error that the child process met.
    """
    request = ReplayRequest(
        target=target,
        steps=plan.steps,
        directory=artefact,
        machine=dict(plan.machine) if plan.fingerprint else None,
        model=plan.model,
        max_drop=None if plan.evidence is None else plan.evidence.max_drop,
        force=force,
    )
    outcome = run(replay_recipe, request, artefact.parent, _LIMIT_S)
    if outcome.failure is not None:
        raise outcome.failure.as_error()
    found = outcome.answer(Replayed)
    assert found is not None
    return found


def _applied(found: Replayed, directory: Path | None, plan: Recipe) -> Applied:
    return Applied(
        **{name: getattr(found, name) for name in AppliedSteps.model_fields},
        out="" if directory is None else str(directory),
        max_drop=None if plan.evidence is None else plan.evidence.max_drop,
    )
