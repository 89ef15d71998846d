"""Declare to ctypes what the C functions of the kernels take and return.

Without prototypes ctypes passes any arguments: one too many, or a number that does not fit, would silently overwrite
memory. A test compares this table with the exports in the sources.
"""

import ctypes
from typing import Any


class Int32(ctypes.c_int32):
    """Pass a 32-bit integer as an argument. A number that does not fit is an error; ctypes would truncate it."""

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """Return the argument for a number or a c_int32.

        Raises:
            OverflowError: The number does not fit into 32 bits.
        """
        number = value.value if isinstance(value, ctypes.c_int32) else int(value)
        if not -(2**31) <= number < 2**31:
            raise OverflowError(f"{number} does not fit into 32 bits")
        return ctypes.c_int32(number)


POINTER = ctypes.c_void_p
FLOAT = ctypes.c_float
SIZE = ctypes.c_size_t

PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "whet_set_threads": (None, (Int32,)),
    "whet_use_openmp": (None, (POINTER,)),
    "whet_pack": (None, (POINTER, Int32, Int32, Int32, POINTER, POINTER)),
    "whet_linear": (None, (POINTER, POINTER, Int32, Int32, Int32, POINTER, POINTER, POINTER, POINTER)),
    "whet_gated_mlp_room": (SIZE, (POINTER, POINTER)),
    "whet_gated_mlp": (None, (POINTER, POINTER, POINTER, Int32, Int32, Int32, Int32, POINTER, POINTER)),
    "whet_rms_norm": (None, (POINTER, POINTER, POINTER, Int32, Int32, FLOAT, POINTER, POINTER)),
    "whet_qkv_rope": (None, (POINTER, POINTER, POINTER, POINTER, POINTER, FLOAT, POINTER, POINTER)),
    "whet_paged_attention": (ctypes.c_int, (POINTER, POINTER, FLOAT, Int32, POINTER, Int32, POINTER, POINTER)),
    "whet_sample": (
        None,
        (POINTER, Int32, Int32, POINTER, POINTER, POINTER, POINTER, POINTER, POINTER, Int32, POINTER, POINTER),
    ),
    "whet_cross_entropy": (None, (POINTER, Int32, Int32, Int32, POINTER, FLOAT, FLOAT, POINTER)),
    "whet_add_bf16": (None, (POINTER, POINTER, Int32, Int32)),
    "whet_round_by_chance": (None, (POINTER, Int32, Int32, Int32, Int32, POINTER)),
    "whet_selective_scan": (None, (POINTER, POINTER)),
    "whet_selective_scan_bundles": (ctypes.c_int, (POINTER,)),
    "whet_selective_scan_backward": (None, (POINTER, POINTER)),
    "whet_causal_conv": (None, (POINTER, POINTER, Int32)),
    "whet_causal_conv_parts": (ctypes.c_int, (POINTER,)),
    "whet_causal_conv_backward": (None, (POINTER, POINTER)),
    "whet_selective_new": (POINTER, (POINTER,)),
    "whet_selective_free": (None, (POINTER,)),
    "whet_selective_step": (ctypes.c_int, (POINTER, POINTER, POINTER, POINTER, Int32, POINTER)),
    "whet_hybrid_new": (POINTER, (POINTER,)),
    "whet_hybrid_free": (None, (POINTER,)),
    "whet_hybrid_step": (ctypes.c_int, (POINTER, POINTER, POINTER, POINTER, POINTER, Int32, POINTER)),
    "whet_hybrid_follow": (ctypes.c_int, (POINTER,)),
    "whet_group_bytes": (SIZE, (POINTER,)),
    "whet_group_new": (POINTER, (POINTER, POINTER)),
    "whet_group_free": (None, (POINTER,)),
    "whet_group_logits": (POINTER, (POINTER,)),
    "whet_group_end": (None, (POINTER,)),
    "whet_group_fail": (None, (POINTER, Int32)),
    "whet_group_failed": (ctypes.c_int, (POINTER,)),
    "whet_group_waited": (SIZE, (POINTER,)),
    "whet_memory_new": (POINTER, (POINTER,)),
    "whet_memory_free": (None, (POINTER,)),
    "whet_memory_derive": (None, (POINTER, Int32)),
    "whet_memory_step": (ctypes.c_int, (POINTER, POINTER, Int32, Int32, POINTER, POINTER, Int32, POINTER)),
    "whet_graph_new": (POINTER, (POINTER, Int32)),
    "whet_graph_free": (None, (POINTER,)),
    "whet_graph_run": (ctypes.c_int, (POINTER, POINTER)),
}
"""For each exported function, the type of its result and the types of its arguments."""


def declare(functions: ctypes.CDLL) -> None:
    """Give every function of the library its prototype. One that a build lacks is missed when it is called."""
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(functions, name, None)
        if function is not None:
            function.restype, function.argtypes = result, arguments
