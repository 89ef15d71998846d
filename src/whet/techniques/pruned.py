"""Share what the techniques that prune need: the training that goes with a model, and what is trained by it."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from whet.core.signature import FlatModel
from whet.core.workload import ExaminedWorkload, TrainingWorkload
from whet.errors import OptionError, RecipeError, TargetError, WhetError
from whet.measure.machine import Limits
from whet.profiling.model import Profile
from whet.techniques.mechanisms.distillation import distilled
from whet.techniques.mechanisms.pruning.cost import cost_of
from whet.techniques.mechanisms.pruning.fine_tuning import fine_tune, fine_tuned_once, key_of
from whet.techniques.mechanisms.pruning.importance import IMPORTANCES
from whet.techniques.technique import Candidate

PRUNING = "pruning"  # the group of the techniques that make a model smaller, which exclude each other

_NO_TRAINING = (
    "pruned weights need fine-tuning, and no training goes with this model; name one: --training TARGET, or "
    "whet.tune(workload, training=...)"
)
_refusals: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()


def check_options(options: Any) -> None:
    """Raise OptionError where an option that pruning techniques share (keep, importance, ...) is out of its range."""
    if not 0 < options.keep < 1:
        raise OptionError(f"keep must be above 0 and below 1, not {options.keep}")
    if options.importance not in IMPORTANCES:
        raise OptionError(f"importance must be one of {', '.join(IMPORTANCES)}, not {options.importance!r}")
    if options.steps < 1:
        raise OptionError(f"steps must be at least 1, not {options.steps}")
    if options.rate <= 0:
        raise OptionError(f"rate must be above 0, not {options.rate}")
    if not 0 <= options.distil <= 1:
        raise OptionError(f"distil must be from 0 to 1, not {options.distil}")


def refusal(examined: ExaminedWorkload) -> str:
    """Return why a model cannot be pruned whatever its kind, or "" where it can: no training, or another model's."""
    workload = examined.workload
    if workload.training is None:
        return _NO_TRAINING
    try:
        training = workload.open_training()
    except WhetError as error:
        return f"the training that goes with this model cannot be opened: {error}"
    shapes, trained = (
        {name: tuple(weight.shape) for name, weight in model.named_parameters()}
        for model in (workload.model, training.model)
    )
    if shapes != trained:
        name = sorted(shapes.items() ^ trained.items())[0][0]
        return f"{training.name} trains another model: the two differ in {name}"
    return ""


def once_for(model: nn.Module, what: str, refuse: Callable[[], str]) -> str:
    """Return the reason, or "", that is found once for a model and a technique (`what`), however often it is asked."""
    known = _refusals.setdefault(model, {})
    if what not in known:
        known[what] = refuse()
    return known[what]


def call_of(examined: ExaminedWorkload) -> Callable[[nn.Module], Any]:
    """Return a function that calls the model, or a smaller one, with the first batch of the workload."""
    args, kwargs = examined.signature.call(examined.flat_inputs[0])
    return lambda model: model(*args, **kwargs)


def work_scale_of(options: Any) -> float:
    return float(options.keep)


def predict(profile: Profile, limits: Limits, options: Any) -> float:
    return 1 / work_scale_of(options)


def pruned(
    candidate: Candidate, name: str, options: Any, cut: Callable[[nn.Module, TrainingWorkload], nn.Module]
) -> Candidate:
    """Return a candidate with a smaller model that was trained further; its weights are kept beside the search.

    Args:
        candidate: The original as a candidate.
        name: The technique's name.
        options: Its options, a dataclass with `steps`, `rate` and `distil`.

    Raises:
        TargetError: No training goes with the model, or it cannot be cut.
        RecipeError: Another technique has changed the model before.
    """
    flat, examined = candidate.module, candidate.examined
    if not isinstance(flat, FlatModel):
        raise RecipeError(f"{name} comes before every technique that makes a graph of the model")
    if why := refusal(examined):
        raise TargetError(f"{name}: {why}")
    training = examined.workload.open_training()
    model: nn.Module = flat.model
    small = cut(model, training)
    call = call_of(examined)
    before, after = cost_of(model, call), cost_of(small, call)
    chosen: Mapping[str, Any] = {"technique": name, **asdict(options)}
    key = key_of(model, small, training, options.steps, chosen)
    taught = distilled(training, copy.deepcopy(model), alpha=options.distil) if options.distil else training
    fine_tuned_once(small, examined.kept_in, key, lambda one: fine_tune(one, taught, options.steps, options.rate))
    note = (
        f"{name}: {before.flops / 1e6:,.0f} to {after.flops / 1e6:,.0f} million operations a call, "
        f"{before.num_parameters / 1e6:.3g} to {after.num_parameters / 1e6:.3g} million parameters; fine-tuned for "
        f"{options.steps} steps of {training.name}"
    )
    made = candidate.with_module(FlatModel(small.eval(), flat.signature, flat.shared), note)
    return replace(made, examined=_with_model(examined, small))


def _with_model(examined: ExaminedWorkload, small: nn.Module) -> ExaminedWorkload:
    """Return a workload with the smaller model as its original, so that later techniques answer as it does.

    Its score stays the original's, which a recipe is judged by.
    """
    flat = FlatModel(small, examined.signature, examined.shared)
    with torch.no_grad():
        outputs = tuple(flat(*batch) for batch in examined.flat_calibration)
    return replace(examined, workload=replace(examined.workload, model=small), outputs=outputs)
