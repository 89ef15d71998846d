"""Check an operator against its reference: values, shapes of fake tensors, and gradients."""

import logging
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from whet.errors import OperatorError, reason

_log = logging.getLogger("whet.kernels")

_SMALL = 500  # numbers of a sample up to which every derivative is checked, and above that random mixtures of them

# What torch.library.opcheck tries, and what it means where that fails.
_TRIALS = {
    "test_schema": "it returns an argument or a view of one",
    "test_faketensor": "its fake gives other shapes, types or strides",
    "test_aot_dispatch_dynamic": "it cannot be traced with sizes that vary",
}

Formula = tuple[Callable[..., Any], Callable[..., None]]
"""backward and setup_context, as torch.library.register_autograd takes them."""


class Tolerance(NamedTuple):
    """Hold the tolerances for values. Either both are given or none; without them the dtype decides."""

    rtol: float | None
    atol: float | None


def check_operator(
    operator: torch._ops.OpOverload,
    reference: Callable[..., Any],
    samples: Sequence[tuple[Any, ...]],
    devices: Set[str],
    formula: Formula | None,
    tolerance: Tolerance,
) -> None:
    """Raise OperatorError where an operator, registered with fake and formula, is not its reference on some sample.

    It is checked on each of the devices that is there; of the others the log says that nothing was checked.
    """
    here = [device for device in sorted(devices) if _is_here(device)]
    for device in sorted(devices - set(here)):
        _log.warning("%s was not checked on %s, which is not there", operator, device)
    placed = [
        (
            f"{operator.name()}, sample {number} on {device}",
            tree_map_only(Tensor, partial(_placed, device=device), sample),
        )
        for device in here
        for number, sample in enumerate(samples, start=1)
    ]
    for where, sample in placed:
        _check_values(operator, reference, sample, tolerance, where)
        apart = tree_map_only(Tensor, _apart, sample)
        _check_values(operator, reference, apart, tolerance, f"{where} with tensors that are not contiguous")
    if formula is not None:
        for number, sample in enumerate(samples, start=1):
            _check_gradients(reference, sample, formula, f"{operator.name()}, sample {number}")
    for where, sample in placed:
        _check_tracing(operator, sample, formula is not None, tolerance, where)


def _is_here(device: str) -> bool:
    kind = torch.device(device).type
    return kind == "cpu" or bool(torch.get_device_module(kind).is_available())


def _placed(x: Tensor, device: str) -> Tensor:
    return x.detach().to(device, copy=True)


def _apart(x: Tensor) -> Tensor:
    """Return a tensor of equal values that is not contiguous in memory."""
    return torch.stack((x, torch.zeros_like(x)), dim=-1)[..., 0]


def _check_values(
    operator: torch._ops.OpOverload,
    reference: Callable[..., Any],
    sample: tuple[Any, ...],
    tolerance: Tolerance,
    where: str,
) -> None:
    before = tree_map_only(Tensor, torch.clone, sample)
    with torch.no_grad():
        try:
            wanted = reference(*before)
        except Exception as error:  # a user's function raises anything
            raise OperatorError(
                f"{where}: the reference raises {type(error).__name__}: {reason(error)}; give samples that it takes"
            ) from error
        try:
            found = operator(*sample)
        except Exception as error:
            raise OperatorError(
                f"{where}: the implementation raises {type(error).__name__}: {reason(error)}"
            ) from error
    try:
        torch.testing.assert_close(found, wanted, **tolerance._asdict(), equal_nan=True)
    except (AssertionError, TypeError) as error:
        said = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise OperatorError(f"{where}: the implementation is not the reference: {said}") from error
    for position, (value, old) in enumerate(zip(sample, before, strict=True), start=1):
        if isinstance(value, Tensor) and not torch.allclose(value, old, rtol=0, atol=0, equal_nan=True):
            raise OperatorError(
                f"{where}: the implementation changes its argument {position}; have it write into a tensor of its own"
            )


def _check_tracing(
    operator: torch._ops.OpOverload, sample: tuple[Any, ...], has_backward: bool, tolerance: Tolerance, where: str
) -> None:
    if has_backward:
        sample = tree_map_only(Tensor, _recording, sample)
    for trial, meaning in _TRIALS.items():
        try:
            torch.library.opcheck(operator, sample, test_utils=trial, **tolerance._asdict())
        except Exception as error:  # the implementation's own errors come through as they are
            raise OperatorError(f"{where}: {meaning}: {reason(error.__cause__ or error)}") from error


def _check_gradients(reference: Callable[..., Any], sample: tuple[Any, ...], formula: Formula, where: str) -> None:
    """Compare the gradient formula with finite differences of the reference, both in float64."""

    class Checked(torch.autograd.Function):
        forward = staticmethod(reference)
        backward = staticmethod(formula[0])
        setup_context = staticmethod(formula[1])

    exact = tree_map_only(Tensor, lambda x: _recording(x.cpu().double() if x.is_floating_point() else x.cpu()), sample)
    numbers = sum(x.numel() for x in exact if isinstance(x, Tensor))
    try:
        torch.autograd.gradcheck(Checked.apply, exact, fast_mode=numbers > _SMALL)
    except Exception as error:
        raise OperatorError(f"{where}: the backward is not the reference's derivative: {reason(error)}") from error


def _recording(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_() if x.is_floating_point() else x
