"""Prune the model of a run: weights that become zero while it trains, or parts that are gone before it begins."""

from torch import nn

from whet.errors import OptionError, TargetError
from whet.techniques.mechanisms.pruning.cost import cost_of
from whet.techniques.mechanisms.pruning.decoders import refusal
from whet.techniques.mechanisms.pruning.importance import Amounts, decoder_scores, first_batches, kept_by
from whet.techniques.mechanisms.pruning.schedule import CubicSchedule
from whet.trainer.config import TrainConfig
from whet.trainer.data import RunData
from whet.trainer.gradual_pruning import GradualPruning
from whet.trainer.model import TrainedModel, cut_model
from whet.trainer.sections import PruneSection
from whet.trainer.workload import workload_of
from whet.ui.figures import percent


def check_structured(config: TrainConfig, opened: TrainedModel | None) -> None:
    """Raise OptionError where the configuration cuts parts of a model that cannot be cut, or of a new one (None)."""
    if config.prune is None or config.prune.kind != "structured":
        return
    if opened is None:
        raise OptionError(
            "prune.kind is structured, and a new model has learnt nothing that tells which parts matter; name a "
            "trained model as model.directory, or give the new one smaller sizes"
        )
    if why := refusal(opened.module):
        raise OptionError(f"prune.kind is structured, and this model cannot be cut: {why}")


def cut_to_size(config: TrainConfig, model: TrainedModel, data: RunData) -> tuple[TrainedModel, tuple[str, ...]]:
    """Return the model without the parts that matter least, and what people should know of it.

    The parts are chosen from the weights and the first batches, so that a run that goes on chooses them again; the
    weights of a run that goes on come from its checkpoint.

    Args:
        model: The model that the run began from, which `check_structured` has seen.

    Raises:
        TargetError: The amounts leave nothing to go.
    """
    section = config.prune
    if section is None or section.kind != "structured":
        return model, ()
    workload = workload_of(config, model, data.batches(0), [], "pruning")
    scores = decoder_scores(
        model.module, workload, importance=section.importance, num_batches=section.num_batches or NUM_BATCHES
    )
    kept = kept_by(model.module, scores, Amounts(**dict.fromkeys(section.what, section.amount)))
    small = cut_model(model, kept)
    batch = first_batches(workload, 1)[0]
    before, after = (cost_of(one.module, lambda module: model.loss(module, batch)) for one in (model, small))
    if after.flops >= before.flops:
        raise TargetError(
            f"prune.amount {section.amount:g} of {' and '.join(section.what)} removes no part of this model; give more"
        )
    note = (
        f"pruned: {percent(after.num_parameters / before.num_parameters, decimals=0)} of the parameters and "
        f"{percent(after.flops / before.flops, decimals=0)} of the operations are left"
    )
    return small, (note,)


NUM_BATCHES = 8  # from which importance is found, where the configuration does not say


def gradual_pruning(config: TrainConfig, module: nn.Module) -> GradualPruning | None:
    """Return what prunes the model while it trains; None where nothing does.

    Raises:
        OptionError: The model has no weights that may become zero.
    """
    section = config.prune
    if section is None or section.kind != "unstructured":
        return None
    return GradualPruning(module, schedule_of(section, config.steps), section.scope)


def schedule_of(section: PruneSection, steps: int) -> CubicSchedule:
    return CubicSchedule(
        amount=section.amount,
        begin_step=section.begin_step,
        end_step=section.last_cut(steps),
        interval=section.interval,
    )
