"""Turn a target named on the command line into a Workload.

A target is a built-in name (digits-cnn), a Hugging Face directory (hf:DIR), or a function of the user's own
(FILE.py:FUNCTION, package.module:FUNCTION) that takes no arguments and returns a Workload, (model, inputs) or (model,
inputs, Quality). `?device=cuda` after any of them puts the model and its batches on the GPU, `?training=TARGET` names
the training that the model came from.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from whet.core.workload import InferenceWorkload, Quality, StreamWorkload, TrainingWorkload
from whet.core.workload.measurables import AnyWorkload
from whet.core.workload.training import kept_generators
from whet.errors import StreamTarget, TargetError, TrainingTarget, WhetError, is_out_of_memory, type_name
from whet.workloads import huggingface, huggingface_training
from whet.workloads.device import device_here, placed, training_on_device
from whet.workloads.handover import PICKLED, taken_over
from whet.workloads.sizes import checked_sizes, resized
from whet.workloads.target_name import NAMES, TargetName, asks_for_training, split_function
from whet.workloads.user_code import check_arguments, load_function, parameters_of, what_and_where

_RETURNS = "a whet.Workload, (model, inputs) or (model, inputs, Quality)"


def resolve(target: str, sizes: Mapping[str, int] = MappingProxyType({})) -> InferenceWorkload:
    """Return the inference workload that `target` names.

    A device may follow the name: `TARGET?device=cuda`. A function that has a parameter `device` places the model
    itself; every other workload is moved.

    Args:
        sizes: Values for `batch` (samples) and `seq` (tokens) that replace the workload's own. A function that has
            parameters of these names is called with them; otherwise the workload's first batch is cut or repeated.

    Raises:
        TargetError: There is no such workload, or it is of another kind.
        MissingExtra: An optional package that it needs is not installed.
    """
    return inference_only(resolve_any(target, sizes), target)


def resolve_any(target: str, sizes: Mapping[str, int] = MappingProxyType({})) -> AnyWorkload:
    """Return the workload that `target` names, of whatever kind; see resolve."""
    sizes = checked_sizes(sizes)
    named = TargetName.read(target)
    device = device_here(named)
    workload = _resolved(named.address, sizes, device)
    if named.training:
        workload = trained_by(inference_only(workload, named.address), named.training, device)
    return placed(workload, device)


def open_any(address: str, sizes: Mapping[str, int] = MappingProxyType({})) -> AnyWorkload:
    """Return the workload of a target's name and sizes (see resolve_any), or that at an address of `hand_over`."""
    return taken_over(address) if address.startswith(PICKLED) else resolve_any(address, sizes)


def open_target(address: str) -> InferenceWorkload:
    """Return the inference workload of a name or address; see open_any."""
    return inference_only(open_any(address), address)


def inference_only(workload: AnyWorkload, target: str) -> InferenceWorkload:
    """Return a workload as it is if it is for inference, or raise TargetError."""
    if isinstance(workload, TrainingWorkload):
        raise TrainingTarget(f"{target} is a TrainingWorkload; here whet takes an InferenceWorkload")
    if isinstance(workload, StreamWorkload):
        raise StreamTarget(f"{target} is a StreamWorkload; here whet takes an InferenceWorkload")
    if not isinstance(workload, InferenceWorkload):
        raise TargetError(f"{target} is a {type(workload).__name__}; here whet takes an InferenceWorkload")
    return workload


def _resolved(target: str, sizes: Mapping[str, int], device: str) -> AnyWorkload:
    """Return the workload that `target` names, without moving it to a device."""
    if target in NAMES:
        built = import_module(f"whet.workloads.{target.replace('-', '_')}").build()
        if device == "cuda" and isinstance(built, StreamWorkload):
            raise TargetError(f"{target}?device=cuda: a built-in stream runs on a GPU by whet stream --device cuda")
        return resized(built, **sizes) if isinstance(built, InferenceWorkload) else _unsized(built, target, sizes)
    if target.startswith("hf:") and asks_for_training(target.partition("?")[2]):
        return _unsized(huggingface_training.build(target.removeprefix("hf:")), target, sizes)
    if target.startswith("hf:"):
        return huggingface.build(target.removeprefix("hf:"), sizes)
    place, name = split_function(target)
    function = load_function(place, name, f"one that returns {_RETURNS}")
    taken = parameters_of(function)
    given: dict[str, Any] = {size: value for size, value in sizes.items() if size in taken}
    if device and "device" in taken:
        given["device"] = device
    workload = _call(function, name, place, given)
    others = {size: value for size, value in sizes.items() if size not in taken}
    return (
        resized(workload, **others) if isinstance(workload, InferenceWorkload) else _unsized(workload, target, others)
    )


def _unsized(workload: AnyWorkload, target: str, sizes: Mapping[str, int]) -> AnyWorkload:
    """Return a workload whose batches cannot be cut; raise TargetError where other sizes were asked for."""
    if sizes:
        raise TargetError(f"{target} is a {type(workload).__name__}, whose function takes no {' or '.join(sizes)}")
    return workload


def _call(function: Callable[..., Any], name: str, place: str, given: Mapping[str, Any]) -> AnyWorkload:
    check_arguments(function, f"{place}:{name}", given)
    try:
        returned = function(**given)
    except WhetError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            said = "ran out of memory while it made the weights and the batches; make them smaller"
            raise TargetError(f"{place}:{name} {said}: {what_and_where(error)}") from error
        raise TargetError(f"{place}:{name} raised {what_and_where(error)}") from error
    stem = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return _as_workload(returned, f"{place}:{name}", f"{stem}.{name}")


def _as_workload(returned: Any, source: str, default_name: str) -> AnyWorkload:
    """Return a function's return value as a workload, named for the function where it has no name of its own."""
    if isinstance(returned, AnyWorkload):
        unnamed = returned.name == getattr(type(returned), "name", None)
        return dataclasses.replace(returned, name=default_name) if unnamed else returned
    if not isinstance(returned, tuple) or len(returned) not in (2, 3) or not isinstance(returned[0], nn.Module):
        raise TargetError(f"{source} returned {_describe(returned)}; it must return {_RETURNS}")
    model, inputs, *rest = returned
    if _is_call(model, inputs, source) or isinstance(inputs, Tensor | Mapping):
        inputs = [inputs]  # one batch
    if rest and not isinstance(rest[0], Quality):
        raise TargetError(f"{source} returned {type_name(rest[0])} in third place; it must be a whet.Quality")
    return InferenceWorkload(model=model.eval(), inputs=inputs, quality=rest[0] if rest else None, name=default_name)


def _is_call(model: nn.Module, inputs: Any, source: str) -> bool:
    """Return whether a tuple is one call's arguments, not several batches, or raise TargetError if it may be either."""
    if not isinstance(inputs, tuple) or len(inputs) < 2:
        return False
    if not all(isinstance(x, Tensor) for x in inputs):
        # Batches all have the same type; a tuple of several types is the arguments of one call.
        kinds = {Tensor if isinstance(x, Tensor) else Mapping if isinstance(x, Mapping) else type(x) for x in inputs}
        return len(kinds) > 1
    parameters = parameters_of(model.forward).values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    num_needed = sum(p.default is p.empty for p in by_position)
    takes_all = len(inputs) <= len(by_position) or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if num_needed <= 1 and takes_all:
        raise TargetError(
            f"{source} returned a tuple of {len(inputs)} tensors, which {type(model).__name__} takes as one call or as "
            "batches; return a list: [(a, b)] for one call of several tensors, [a, b] for several batches"
        )
    return num_needed <= len(inputs) and takes_all


def _describe(value: Any) -> str:
    """Return what a function returned, in a few words for an error message."""
    if isinstance(value, tuple):
        return "(" + ", ".join(type(item).__name__ for item in value) + ")"
    hint = " (is a return statement missing?)" if value is None else ""
    name = type(value).__name__
    article = "" if value is None else "an " if name[0].lower() in "aeiou" else "a "
    return f"{article}{name}{hint}"


@dataclass(frozen=True)
class NamedTraining:
    """Open a training when it is asked for, once in a process. Other workloads are built without it.

    `device` is that of the model that it goes with; "" for the training's own.
    """

    name: str
    device: str = ""

    def __call__(self) -> TrainingWorkload:
        """Return the training, or raise TargetError where there is none of this name."""
        return _opened(self.name, self.device)


@lru_cache(maxsize=1)
def _opened(name: str, device: str) -> TrainingWorkload:
    with kept_generators():
        found = open_any(name)
    if not isinstance(found, TrainingWorkload):
        raise TargetError(f"{name} is a {type(found).__name__}; --training takes a TrainingWorkload")
    return training_on_device(found, device) if device else found


def trained_by(
    workload: InferenceWorkload, training: str | TrainingWorkload | Callable[[], TrainingWorkload], device: str = ""
) -> InferenceWorkload:
    """Return a workload with the training that goes with it, by name or as it is."""
    return dataclasses.replace(
        workload, training=NamedTraining(training, device) if isinstance(training, str) else training
    )
