"""What the operators share: the compiled kernels where they can be had, and tensors as those take them.

Every operator is a torch custom op of the namespace `whet`. Its general implementation runs the C++ kernels for tensors
on the CPU and its torch reference for all else; a kernel for another device is registered beside it
(`operator.register_kernel("cuda")`) and is then what torch dispatches to.
"""

import ctypes
import functools
import logging

import torch
from torch import Tensor

from whet.errors import InputsError, KernelsError
from whet.kernels.build import Library, library

_log = logging.getLogger("whet.kernels")

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@functools.cache
def kernels() -> Library | None:
    """The compiled kernels, or None where there are none, which is logged once.

    Raises OptionError where WHET_KERNELS is not a known name.
    """
    try:
        return library()
    except KernelsError as error:
        _log.warning("whet's operators run in torch, many times slower than its own kernels: %s", error)
        return None


def kernels_for(x: Tensor, *others: Tensor | None) -> Library | None:
    """Those for the device of x, or None where torch has to do; logged once for a device.

    Raises InputsError where the other tensors are not on that device.
    """
    device = x.device
    for other in others:
        if other is not None and other.device != device:
            raise InputsError(f"an operator's tensors are on one device, not on {device} and {other.device}")
    if device.type == "cpu":
        return kernels()
    _say_without(device.type)
    return None


@functools.cache
def _say_without(device: str) -> None:
    _log.warning("whet's operators have no kernels for %s and run in torch, many times slower", device)


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """Its memory, for a kernel; the tensor must outlive the call."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def check_floats(x: Tensor) -> None:
    """Raises InputsError where x is not of a floating type that the operators take, or its rows are empty."""
    if x.dtype not in _FLOATS or x.dim() == 0 or x.shape[-1] == 0:
        raise InputsError(
            f"the input is rows of numbers in float32, bfloat16 or float16, not {x.dtype} {list(x.shape)}"
        )


def as_floats(x: Tensor) -> Tensor:
    """The same numbers in float32, contiguous."""
    return x if x.dtype is torch.float32 and x.is_contiguous() else x.float().contiguous()


def as_type(y: Tensor, x: Tensor) -> Tensor:
    """y in the type of x."""
    return y if y.dtype is x.dtype else y.to(x.dtype)
