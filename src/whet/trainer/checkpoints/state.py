"""Hold what a checkpoint saves, and take it from a model and from everything with a state_dict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from whet.errors import CheckpointError, OptionError, foreign, type_name
from whet.parallel.pieces import Piece, part_for
from whet.trainer.checkpoints.encoding import decoded, encoded

MODEL = "model"
_MOST_NAMES = 3  # that a message lists


@dataclass(frozen=True)
class TrainingState:
    """Hold what is needed to go on with a training exactly.

    Attributes:
        tensors: Tensors by name. The first word of a name is the part that the tensor belongs to: "model.head.weight",
            "optimizer.state.head.weight.exp_avg", "random.torch".
        values: What JSON can hold: the step, the position in the data, settings, the states of schedules.
        pieces: Where tensors that are parts lie in the whole ones, by their names.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    pieces: Mapping[str, Piece] = field(default_factory=dict)

    def __or__(self, other: "TrainingState") -> "TrainingState":
        """Return both states as one.

        Raises:
            OptionError: A name is in both.
        """
        both = sorted((self.tensors.keys() & other.tensors.keys()) | (self.values.keys() & other.values.keys()))
        if both:
            raise OptionError(f"two parts of a checkpoint are named {both[0]!r}; give each a name of its own")
        return TrainingState(
            {**self.tensors, **other.tensors}, {**self.values, **other.values}, {**self.pieces, **other.pieces}
        )

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class HasState(Protocol):
    """Describe an object whose state can be saved: a schedule of the learning rate, a sampler, a loader."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take over a state."""


def model_tensors(model: nn.Module) -> TrainingState:
    """Return a model's parameters and buffers, under their names in its state_dict. They are not copied.

    Raises:
        OptionError: A module keeps an extra state that is no tensor.
    """
    tensors = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise OptionError(
                f"the model's {name} is {type_name(value)}, and a checkpoint holds tensors alone; have the module's "
                "get_extra_state return a tensor"
            )
        tensors[f"{MODEL}.{name}"] = value
    return TrainingState(tensors)


def load_model(model: nn.Module, state: TrainingState, *, is_part: bool = False) -> None:
    """Load a model's parameters and buffers; of those that are divided among processes, this one's part.

    Nothing is changed where they do not fit.

    Args:
        is_part: Whether the model has some of the saved parameters, and those of other processes the others.

    Raises:
        CheckpointError: A tensor is missing or unexpected, or has another shape or dtype.
    """
    own = {name.removeprefix(f"{MODEL}."): x for name, x in model_tensors(model).tensors.items()}
    names = {name.removeprefix(f"{MODEL}.") for name in state.tensors if name.startswith(f"{MODEL}.")}
    saved, faults = {}, []
    for name in sorted(own) if is_part else sorted(own.keys() | names):
        whole = state.tensors[f"{MODEL}.{name}"] if name in names else None
        fault = _fault(name, whole, own.get(name))
        if fault:
            faults.append(fault)
        elif whole is not None and not faults:
            saved[name] = part_for(whole, own[name])
    if faults:
        more = f" and {len(faults) - _MOST_NAMES} more" if len(faults) > _MOST_NAMES else ""
        raise CheckpointError(
            f"the checkpoint does not fit the model: {'; '.join(faults[:_MOST_NAMES])}{more}; build the model as "
            "in the run that saved it"
        )
    with foreign(CheckpointError, "the checkpoint cannot be loaded into the model"):
        model.load_state_dict(saved)


def _fault(name: str, saved: Tensor | None, own: Tensor | None) -> str:
    """Return what differs between a saved tensor and the model's own; "" for nothing."""
    if saved is None:
        return f"it lacks {name}"
    if own is None:
        return f"the model has no {name}"
    if saved.shape != own.shape:
        return f"{name} has the shape {list(saved.shape)}, and the model's {list(own.shape)}"
    if saved.dtype != own.dtype:
        return f"{name} is {saved.dtype}, and the model's is {own.dtype}"
    return ""


def state_of(name: str, thing: HasState) -> TrainingState:
    """Return the state of an object such as a schedule of the learning rate, under a name of one word.

    Args:
        name: The part of the checkpoint that holds it: "schedule".

    Raises:
        OptionError: The state holds something else than numbers, texts, tensors and containers of them.
    """
    tensors: dict[str, Tensor] = {}
    value = encoded(dict(thing.state_dict()), tensors, name)
    return TrainingState(tensors, {name: value})


def load_state_of(name: str, thing: HasState, state: TrainingState) -> None:
    """Give an object the state that `state_of` saved under a name.

    Raises:
        CheckpointError: There is none, or the object does not take it.
    """
    saved = saved_part(state, name)
    tensors = {key: x.clone() for key, x in state.tensors.items() if key.startswith(f"{name}.")}
    value = decoded(saved, tensors)
    with foreign(CheckpointError, f"the checkpoint's part {name!r} does not fit {type_name(thing)}"), torch.no_grad():
        thing.load_state_dict(value)


def saved_part(state: TrainingState, name: str) -> dict[str, Any]:
    """Return one of a state's values, which must be an object.

    Raises:
        CheckpointError: There is none.
    """
    value = state.values.get(name)
    if not isinstance(value, dict):
        raise CheckpointError(
            f"the checkpoint has no part {name!r}; load one that the same training saved, or leave this part out"
        )
    return value
