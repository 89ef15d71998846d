"""Take an optimiser's state apart by the names of its parameters, and put it back bit for bit.

An optimiser's own state_dict counts its parameters, so that another order of groups or layers would mix them up without
a word, and its load_state_dict casts the state to the parameters' dtype.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from whet.errors import CheckpointError, OptionError, foreign
from whet.parallel.pieces import part_for
from whet.trainer.checkpoints.encoding import decoded, encoded, is_plain
from whet.trainer.checkpoints.state import TrainingState, saved_part

OPTIMIZER = "optimizer"
_OWN = ("params", "param_names")  # of a group: what names its parameters
_STANDARD = ("state", "param_groups")  # of a state_dict; more is what hooks add, such as the scale of a loss


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> TrainingState:
    """Return an optimiser's state and the settings of its groups, by the names of the parameters. Nothing is copied.

    Args:
        model: The model whose parameters it updates.
        optimizer: The optimiser, of any class whose state consists of tensors and plain values.

    Returns:
        Tensors named "optimizer.state.PARAMETER.KEY", and the value "optimizer".

    Raises:
        OptionError: It updates a parameter that the model does not have, or keeps something that cannot be saved.
    """
    names = _group_names(model, optimizer)
    order = [name for group in names for name in group]
    saved = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    states = {}
    for index, entry in saved["state"].items():
        if not (isinstance(index, int) and index < len(order)):
            raise OptionError(
                f"{type(optimizer).__name__} keeps a state {index!r} that belongs to no parameter, which a checkpoint "
                "does not hold; choose an optimiser that keeps its state by parameter"
            )
        states[order[index]] = _encoded_entry(entry, tensors, _prefix(order[index]))
    groups = []
    for number, (group, group_names) in enumerate(zip(saved["param_groups"], names, strict=True)):
        settings = {name: value for name, value in group.items() if name not in _OWN}
        groups.append(
            {"names": group_names, "settings": encoded(settings, tensors, f"{OPTIMIZER}.groups.{number}")},
        )
    extra = {name: value for name, value in saved.items() if name not in _STANDARD}
    value = {
        "class": type(optimizer).__name__,
        "groups": groups,
        "state": states,
        "extra": encoded(extra, tensors, f"{OPTIMIZER}.extra"),
    }
    return TrainingState(tensors, {OPTIMIZER: value})


def joined_optimizers(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the value "optimizer" of two processes, each of which holds the state of some parameters, as one."""
    groups = []
    for mine, theirs in zip(first["groups"], other["groups"], strict=True):
        known = set(mine["names"])
        groups.append({**mine, "names": [*mine["names"], *(name for name in theirs["names"] if name not in known)]})
    return {**first, "groups": groups, "state": {**first["state"], **other["state"]}}


def load_optimizer(model: nn.Module, optimizer: Optimizer, state: TrainingState, *, is_part: bool = False) -> None:
    """Give an optimiser the state that `optimizer_tensors` took, bit for bit.

    Each tensor keeps its dtype and lies on the device where the optimiser itself would have put it. The tensors of the
    checkpoint are copied.

    Args:
        model: The model whose parameters it updates.
        optimizer: An optimiser of the same class, whose groups hold the same parameters, in any order.
        is_part: Whether its groups hold some of the parameters, and other processes the others.

    Raises:
        CheckpointError: The state is another optimiser's, or of other groups of parameters.
    """
    saved = saved_part(state, OPTIMIZER)
    if saved.get("class") != type(optimizer).__name__:
        raise CheckpointError(
            f"the checkpoint holds the state of {saved.get('class')}, and the optimiser is {type(optimizer).__name__}; "
            "train with the optimiser that saved it"
        )
    names = _group_names(model, optimizer)
    parameters = {
        name: p
        for group, group_names in zip(optimizer.param_groups, names, strict=True)
        for name, p in zip(group_names, group["params"], strict=True)
    }
    with foreign(CheckpointError, "the checkpoint's part 'optimizer' is damaged"):
        mine = [name for name in saved["state"] if name in parameters or not is_part]
        states = {name: _entry(name, saved["state"][name], state.tensors, parameters[name]) for name in mine}
        known = _of_names(saved["groups"], names) if is_part else saved["groups"]
        groups = _groups(known, names, optimizer.param_groups, state.tensors)
        extra = _copied(decoded(saved["extra"], state.tensors))
    index_of = {name: index for index, name in enumerate(parameters)}
    state_dict = {
        "state": {index_of[name]: dict(entry) for name, entry in states.items()},
        "param_groups": groups,
        **extra,
    }
    with foreign(CheckpointError, f"{type(optimizer).__name__} does not take the checkpoint's state"):
        optimizer.load_state_dict(state_dict)
    for name, entry in states.items():
        _put_exactly(optimizer.state[parameters[name]], entry)


def _group_names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Return the names of the parameters of each group.

    Raises:
        OptionError: The model does not have one of them.
    """
    name_of = {id(p): name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if id(p) not in name_of:
                raise OptionError(
                    f"the optimiser updates a parameter of the shape {list(p.shape)} that the model does not have, so "
                    "that it has no name in a checkpoint; give the model that holds all of the optimiser's parameters"
                )
    return [[name_of[id(p)] for p in group["params"]] for group in optimizer.param_groups]


def _groups(
    saved: list[dict[str, Any]], names: list[list[str]], own: list[dict[str, Any]], tensors: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """Return the saved groups in the optimiser's own order, as its state_dict holds them.

    Args:
        names: The names of the parameters of each of the optimiser's groups.
        own: The optimiser's groups, of which the devices of settings are taken.

    Raises:
        CheckpointError: The groups hold other parameters.
    """
    saved_of = {(frozenset(group["names"]), 0 if group["names"] else n): group for n, group in enumerate(saved)}
    groups: list[dict[str, Any]] = []
    start = 0
    for number, (group_names, group) in enumerate(zip(names, own, strict=True)):
        found = saved_of.pop((frozenset(group_names), 0 if group_names else number), None)
        if found is None:
            raise CheckpointError(_other_groups(saved, names))
        settings = _copied(decoded(found["settings"], tensors))
        for name, value in settings.items():
            if isinstance(value, Tensor) and isinstance(group.get(name), Tensor):
                settings[name] = value.to(group[name].device)
        groups.append({**settings, "params": list(range(start, start + len(group_names)))})
        start += len(group_names)
    if saved_of:
        raise CheckpointError(_other_groups(saved, names))
    return groups


def _of_names(saved: list[dict[str, Any]], names: list[list[str]]) -> list[dict[str, Any]]:
    """Return saved groups with those of their parameters alone that a part of the optimiser holds."""
    if len(saved) != len(names) or any(set(own) - set(group["names"]) for group, own in zip(saved, names, strict=True)):
        raise CheckpointError(_other_groups(saved, names))
    return [{**group, "names": own} for group, own in zip(saved, names, strict=True)]


def _other_groups(saved: list[dict[str, Any]], names: list[list[str]]) -> str:
    """Return the message for groups that do not hold the same parameters."""
    theirs = {name for group in saved for name in group["names"]}
    mine = {name for group in names for name in group}
    if missing := sorted(mine - theirs):
        told = f"it has no state for {missing[0]}"
    elif unexpected := sorted(theirs - mine):
        told = f"the optimiser does not update {unexpected[0]}"
    else:
        told = "the parameters are divided otherwise"
    return f"the checkpoint does not fit the optimiser's groups: {told}; make the groups as in the run that saved it"


def _prefix(name: str) -> str:
    return f"{OPTIMIZER}.state.{name}"


def _encoded_entry(entry: dict[str, Any], tensors: dict[str, Tensor], prefix: str) -> Any:
    """Return a parameter's state for JSON. Where it is tensors alone, as usual, their keys say everything."""
    is_usual = all(type(key) is str and isinstance(value, Tensor) and is_plain(value) for key, value in entry.items())
    if not is_usual or any(f"{prefix}.{key}" in tensors for key in entry):
        return encoded(dict(entry), tensors, prefix)
    tensors.update((f"{prefix}.{key}", value) for key, value in entry.items())
    return list(entry)


def _entry(name: str, value: Any, tensors: Mapping[str, Tensor], p: nn.Parameter) -> dict[str, Any]:
    """Return a parameter's state, with copies of the tensors. Those of its shape get its strides, as optimisers do."""
    if isinstance(value, list):
        value = {key: {"$tensor": f"{_prefix(name)}.{key}"} for key in value}
    entry: dict[str, Any] = decoded(value, tensors)
    return {
        key: _placed(x, p) if isinstance(x, Tensor) and is_plain(x) and x.shape == p.shape else _copied(x)
        for key, x in entry.items()
    }


def _placed(x: Tensor, p: nn.Parameter) -> Tensor:
    """Return a copy with a parameter's strides; of one that is divided among processes, this one's part."""
    part = part_for(x, p)
    return part if part is not x else torch.empty_like(p, dtype=x.dtype, device=x.device, requires_grad=False).copy_(x)


def _copied(value: Any) -> Any:
    """Return a value with copies of its tensors, which lie in a file of the checkpoint."""
    return tree_map_only(Tensor, _clone, value)


def _clone(x: Tensor) -> Tensor:
    if is_plain(x):
        return x.clone()
    names, context = x.__tensor_flatten__()  # type: ignore[attr-defined]
    made: Tensor = type(x).__tensor_unflatten__(  # type: ignore[attr-defined]
        {name: _clone(getattr(x, name)) for name in names}, context
    )
    return made


def _put_exactly(held: dict[str, Any], entry: dict[str, Any]) -> None:
    """Replace what an optimiser has cast to its parameter's dtype by what was saved, on the device that it chose."""
    for key, value in entry.items():
        loaded = held.get(key)
        if isinstance(value, Tensor) and isinstance(loaded, Tensor):
            held[key] = value if value.device == loaded.device else value.to(loaded.device)
