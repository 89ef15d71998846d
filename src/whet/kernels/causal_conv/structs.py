"""The structures of causal_conv/kernel.h, as Python fills them in."""

import ctypes

from whet.kernels.selective_scan.structs import Int, Pointer, View


class Problem(ctypes.Structure):
    """Mirror the C structure of what a convolution reads."""

    _fields_ = (
        *((name, Int) for name in ("batch", "length", "channels", "taps", "is_silu")),
        ("x", View),
        *((name, Pointer) for name in ("weight", "bias", "initial")),
    )


class Gradients(ctypes.Structure):
    """Mirror the C structure of what backward reads and writes."""

    _fields_ = (("out", View), *((name, Pointer) for name in ("x", "initial", "weight", "bias")))
