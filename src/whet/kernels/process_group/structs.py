"""Define the structure of process_group/kernel.h that Python fills in."""

import ctypes

_INTS = (
    *("rank", "num_ranks", "hidden", "vocab", "most_rows", "most_tokens", "most_ints"),
    *("first_logit", "num_logits"),
)
MOST_ROWS = 192  # that a sum takes at once; the PART_TOKENS of decoder/kernel.h


class GroupSizesStruct(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_int32) for name in _INTS), ("timeout_s", ctypes.c_float))
