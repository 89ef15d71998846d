"""Put a workload on another device: `TARGET?device=cuda`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from whet.core.signature import Outputs
from whet.core.workload import InferenceWorkload, Predict, Quality, TrainingWorkload, Workload
from whet.core.workload.measurables import AnyWorkload
from whet.core.workload.training import Loss
from whet.errors import OptionError, TargetError
from whet.measure.device import check_usable
from whet.workloads.target_name import TargetName, check_device


def device_here(named: TargetName) -> str:
    """Return the device that a target's name asks for, "" for none; raise TargetError where it cannot be had here."""
    check_device(named.device)
    if named.device == "cuda":
        try:
            check_usable(named.device, "device")
        except OptionError as error:
            raise TargetError(str(error)) from error
    return named.device or ""


def placed(workload: AnyWorkload, device: str) -> AnyWorkload:
    """Return a workload on a device; "" leaves it where it is, and so does a stream, which its own options place."""
    if device and isinstance(workload, InferenceWorkload):
        return on_device(workload, device)
    if device and isinstance(workload, TrainingWorkload):
        return training_on_device(workload, device)
    return workload


def on_device(workload: Workload, device: str) -> Workload:
    """Return the workload with its model, which is moved in place, and all its batches on a device.

    The quality function still sees tensors where it made them: its arguments to the model are moved to the device, and
    the model's outputs to the CPU. A workload that is on the device already is returned as it is.
    """
    tensors = [*workload.model.parameters(), *workload.model.buffers()]
    for batch in (*workload.inputs, *workload.calibration):
        _mapped(batch, tensors.append)
    if all(tensor.device.type == device for tensor in tensors):
        return workload
    return replace(
        workload,
        model=workload.model.to(device),
        inputs=[_moved(batch, device) for batch in workload.inputs],
        calibration=[_moved(batch, device) for batch in workload.calibration],
        quality=None if workload.quality is None else _quality_on(workload.quality, device),
    )


def training_on_device(workload: TrainingWorkload, device: str) -> TrainingWorkload:
    """Return a training run whose model is moved in place to a device, and whose batches follow in each step.

    The batches stay where they are until the loss needs them, as in a loop that moves each batch, so that the loader
    stays the one that techniques know. Moving a batch that is on the device already costs nothing.
    """
    return replace(
        workload,
        model=workload.model.to(device),
        loss=LossOnDevice(workload.loss, device),
        evaluation=None if workload.evaluation is None else _quality_on(workload.evaluation, device),
    )


@dataclass(frozen=True)
class LossOnDevice:
    """Move each batch to the model's device before its loss is computed."""

    loss: Loss
    device: str

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        return self.loss(model, _moved(batch, self.device))


def _quality_on(quality: Quality, device: str) -> Quality:
    def measure(predict: Predict) -> float | Tensor | Sequence[float]:
        def moved(*args: Any, **kwargs: Any) -> Any:
            return _moved(predict(*_moved(args, device), **_moved(kwargs, device)), "cpu")

        return quality.measure(moved)

    return replace(quality, measure=measure)


def _moved(value: Any, device: str) -> Any:
    return _mapped(value, lambda tensor: tensor.to(device))


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Apply a function to each tensor in nested tuples, lists and mappings. Model outputs keep attribute access."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: _mapped(item, change) for key, item in value.items()}
        return items if type(value) is dict else Outputs(items)
    if isinstance(value, list | tuple):
        parts = [_mapped(part, change) for part in value]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return parts if isinstance(value, list) else tuple(parts)
    return value
