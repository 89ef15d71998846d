"""Take the state of a training, so that it goes on bit for bit, and put it back."""

from collections.abc import Collection
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from whet.core.workload.training import Trainer, seed_everything
from whet.parallel.division import Division, copy_settings, inner_optimizer, settled_optimizer
from whet.parallel.pieces import Piece, is_first_copy, piece_of
from whet.parallel.pipeline.stages import later_copies
from whet.parallel.rank_trainer import RankTrainer, seed_of
from whet.trainer.checkpoints import (
    TrainingState,
    generator_state,
    load_generators,
    load_model,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)
from whet.trainer.checkpoints.encoding import decoded, encoded
from whet.trainer.checkpoints.generators import RANDOM
from whet.trainer.checkpoints.optimizer_state import OPTIMIZER
from whet.trainer.checkpoints.state import MODEL
from whet.trainer.gradual_pruning import GradualPruning

RUN = "run"  # the part of a checkpoint that the loop itself keeps
_SCHEDULE = "schedule"
_OF_SCHEDULE = ("last_epoch", "base_lrs", "_last_lr", "_step_count")
_DEGREES = "degrees"
_COMPRESSION = "compression"


def state_of(
    trainer: Trainer,
    values: dict[str, Any],
    division: Division,
    pruning: GradualPruning | None = None,
    *,
    saves_frozen: bool = True,
) -> TrainingState:
    """Return the state of a training between two steps, of several processes this one's part. Tensors are not copied.

    Args:
        values: What the loop keeps: numbers, texts, and lists and dicts of these.
        saves_frozen: Whether parameters are saved that are not trained. `restore` needs none of them.
    """
    kept: dict[str, Any] = {RUN: values, _DEGREES: division.degrees.sizes}
    rates: dict[str, Tensor] = {}  # some optimisers keep theirs as tensors
    if trainer.scheduler is not None:
        known = trainer.scheduler.state_dict()
        kept[_SCHEDULE] = encoded({name: known[name] for name in _OF_SCHEDULE}, rates, _SCHEDULE)
    model = model_tensors(trainer.model)
    if not saves_frozen:
        frozen = _frozen(trainer)
        model = TrainingState({name: x for name, x in model.tensors.items() if name not in frozen})
    found = TrainingState(rates, kept) | model
    found = found | optimizer_tensors(trainer.model, settled_optimizer(trainer.optimizer))
    found = found if pruning is None else found | pruning.state()
    own = _of_rank(generator_state(), division.ranks.rank) | _compression_state(trainer, division.ranks.rank)
    return _own_part(found, division, later_copies(trainer.model, division)) | own


def _compression_state(trainer: Trainer, rank: int) -> TrainingState:
    """Return what compression remembers on this process, as gradients that it has not sent yet."""
    if not isinstance(trainer, RankTrainer) or trainer.compression is None:
        return TrainingState()
    found, part = trainer.compression.state(), f"{_COMPRESSION}_{rank}"
    if found is None:
        return TrainingState()
    return TrainingState({f"{part}.{name}": x for name, x in found.items()}, {part: {}})


def _own_part(state: TrainingState, division: Division, copies: Collection[str]) -> TrainingState:
    """Return what this process saves: its parts of tensors, and whole ones that no other process saves.

    Args:
        state: What this process holds.
        copies: The names of parameters that the process of another stage saves.
    """
    if division.is_alone:
        return state
    tensors: dict[str, Tensor] = {}
    pieces: dict[str, Piece] = {}
    for name, tensor in state.tensors.items():
        if any(name == f"{MODEL}.{one}" or name.startswith(f"{OPTIMIZER}.state.{one}.") for one in copies):
            continue
        if isinstance(tensor, DTensor):
            if is_first_copy(tensor):
                tensors[name], pieces[name] = piece_of(tensor)
        elif not division.holds_copies or (division.plan.stage == 1 and name.startswith(f"{OPTIMIZER}.")):
            tensors[name] = tensor
    has_more = division.divides_state and not division.ranks.is_first
    values = {OPTIMIZER: state.values[OPTIMIZER]} if has_more else {}
    return TrainingState(tensors, state.values if division.ranks.is_first else values, pieces)


def _of_rank(generators: TrainingState, rank: int) -> TrainingState:
    """Return the states of a process's generators under names of its own; those of the first one keep theirs."""
    part = _random(rank)
    tensors = {f"{part}.{name.partition('.')[2]}": x for name, x in generators.tensors.items()}
    return TrainingState(tensors, {part: generators.values[RANDOM]})


def _random(rank: int) -> str:
    return f"{RANDOM}_{rank}" if rank else RANDOM


def _frozen(trainer: Trainer) -> set[str]:
    """Return the names, in a checkpoint, of the parameters that are not trained."""
    parameters = trainer.model.named_parameters(remove_duplicate=False)
    return {f"{MODEL}.{name}" for name, p in parameters if not p.requires_grad}


def restore(
    trainer: Trainer, state: TrainingState, division: Division, pruning: GradualPruning | None = None
) -> tuple[str, ...]:
    """Put the state of a training back, and return what should be known.

    Args:
        trainer: The training, made of the same model, optimiser and recipe; processes may be divided otherwise.

    Raises:
        CheckpointError: The state is another training's.
    """
    # A checkpoint without the parameters that are not trained is completed with the model's own.
    own = model_tensors(trainer.model).tensors
    frozen = {name: own[name] for name in _frozen(trainer) if name not in state.tensors}
    whole = TrainingState({**state.tensors, **frozen}, state.values) if frozen else state
    load_model(trainer.model, whole, is_part=division.degrees.pipeline > 1)
    if pruning is not None:
        pruning.restore(state)
    load_optimizer(trainer.model, inner_optimizer(trainer.optimizer), state, is_part=division.divides_state)
    if trainer.scheduler is not None:
        # The functions of the schedule are those of the configuration.
        functions = [None] * len(trainer.optimizer.param_groups)
        rates = {name: rate.clone() for name, rate in _part(state, _SCHEDULE).items()}
        trainer.scheduler.load_state_dict({**decoded(state.values[_SCHEDULE], rates), "lr_lambdas": functions})
        copy_settings(inner_optimizer(trainer.optimizer), trainer.optimizer)  # the rates, which the checkpoint has
    return (*_restore_compression(trainer, state, division), *_restore_generators(trainer, state, division))


def _restore_compression(trainer: Trainer, state: TrainingState, division: Division) -> tuple[str, ...]:
    if not isinstance(trainer, RankTrainer) or trainer.compression is None:
        return ()
    step, part = state.values[RUN]["step"], f"{_COMPRESSION}_{division.ranks.rank}"
    own = {name.removeprefix(f"{part}."): x for name, x in _part(state, part).items()}
    same = part in state.values and state.values.get(_DEGREES) == division.degrees.sizes
    trainer.compression.restore(step, own if same else None)
    if same or trainer.compression.state() is None:
        return ()
    return (
        "compression powersgd begins anew, with whole gradients, and what processes had not sent yet is lost: they "
        "were divided otherwise, or compressed otherwise, when this was saved",
    )


def _restore_generators(trainer: Trainer, state: TrainingState, division: Division) -> tuple[str, ...]:
    same = state.values.get(_DEGREES, {}) in ({}, division.degrees.sizes)
    # Divided otherwise, those that share the first process's rows and layers draw what it draws.
    rank = division.ranks.rank if same else division.drawing_rank
    part = _random(rank)
    if rank and (not same or part not in state.values):
        seed_everything(seed_of(trainer.seed, division.drawing_rank, state.values[RUN]["step"]))
        return ()
    tensors = {f"{RANDOM}.{name.partition('.')[2]}": x for name, x in _part(state, part).items()}
    notes = load_generators(TrainingState(tensors, {RANDOM: state.values[part]}))
    if same:
        return notes
    return (
        *notes,
        "the processes are divided otherwise than when this was saved: dropout, if any, may draw other numbers",
    )


def _part(state: TrainingState, part: str) -> dict[str, Tensor]:
    return {name: state.tensors[name] for name in state.tensors if name.startswith(f"{part}.")}
