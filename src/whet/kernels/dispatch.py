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

from whet.errors import InputsError
from whet.kernels.build import KernelsError, Library, library

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


def kernels_for(x: Tensor) -> Library | None:
    """Those for the device of a tensor, or None where torch has to do; logged once for a device."""
    if x.device.type == "cpu":
        return kernels()
    _say_without(x.device.type)
    return None


@functools.cache
def _say_without(device: str) -> None:
    _log.warning("whet's operators have no kernels for %s and run in torch, many times slower", device)


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """Its memory, for a kernel; the tensor must outlive the call."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def check_floats(x: Tensor) -> None:
    """Raises InputsError where x is not of a floating type that the operators take."""
    if x.dtype not in _FLOATS or x.dim() < 1:
        raise InputsError(
            "the input is a tensor of float32, bfloat16 or float16 with a last dimension, "
            f"not {x.dtype} {list(x.shape)}"
        )


def as_rows(x: Tensor) -> Tensor:
    """[..., K] of any floating type -> float32 [M, K], contiguous."""
    return x.reshape(-1, x.shape[-1]).to(torch.float32).contiguous()
