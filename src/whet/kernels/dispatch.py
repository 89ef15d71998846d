"""Share code between the operators: find the compiled kernels, and prepare tensors for them.

Every operator is a torch custom op of the namespace `whet`. It runs the C++ kernels for tensors on the CPU, those in
Triton for tensors on a GPU where there are such (`triton_for`), and its torch reference for everything else.
"""

import ctypes
import functools
import logging
from importlib.util import find_spec

import torch
from torch import Tensor

from whet.errors import InputsError, KernelsError
from whet.kernels.build import Library, library

_log = logging.getLogger("whet.kernels")

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@functools.cache
def kernels() -> Library | None:
    """Return the compiled kernels, or None where there are none. Their absence is logged once.

    Raises:
        OptionError: WHET_KERNELS is not a known name.
    """
    try:
        return library()
    except KernelsError as error:
        _log.warning("whet's operators run in torch, many times slower than its own kernels: %s", error)
        return None


def kernels_for(x: Tensor, *others: Tensor | None) -> Library | None:
    """Return the kernels for the device of x, or None where torch has to compute. That is logged once for a device.

    Raises:
        InputsError: The other tensors are not on that device.
    """
    device = x.device
    _check_devices(x, others)
    if device.type == "cpu":
        return kernels()
    _say_without(device.type)
    return None


@functools.cache
def triton_devices() -> frozenset[str]:
    """Return the types of devices on which whet's kernels in Triton run: GPUs, where Triton is installed."""
    return frozenset({"cuda"} if find_spec("triton") else ())


def triton_for(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether kernels in Triton compute for x. They take no float64.

    Raises:
        InputsError: The other tensors are not on the device of x.
    """
    _check_devices(x, others)
    return x.device.type in triton_devices() and x.dtype is not torch.float64


def _check_devices(x: Tensor, others: tuple[Tensor | None, ...]) -> None:
    for other in others:
        if other is not None and other.device != x.device:
            raise InputsError(f"an operator's tensors are on one device, not on {x.device} and {other.device}")


@functools.cache
def _say_without(device: str) -> None:
    _log.warning("whet's operators have no kernels for %s and run in torch, many times slower", device)


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """Return the address of a tensor's memory for a kernel. The tensor must outlive the call."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def check_floats(x: Tensor) -> None:
    """Raise InputsError unless x has a floating type that the operators take, and rows that are not empty."""
    if x.dtype not in _FLOATS or x.dim() == 0 or x.shape[-1] == 0:
        raise InputsError(
            f"the input is rows of numbers in float32, bfloat16 or float16, not {x.dtype} {list(x.shape)}"
        )


def as_floats(x: Tensor) -> Tensor:
    """Return the same numbers in float32 and in contiguous memory."""
    return x if x.dtype is torch.float32 and x.is_contiguous() else x.float().contiguous()


def as_type(y: Tensor, x: Tensor) -> Tensor:
    return y if y.dtype is x.dtype else y.to(x.dtype)
