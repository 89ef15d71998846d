"""Tell whether a model quantises all samples of a call by one range, which it finds at that call.

The outputs for a sample then depend on the other samples of the call.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch._ops import OpOverload

_IN_ONNX = b"DynamicQuantize"  # DynamicQuantizeLinear, DynamicQuantizeMatMul, DynamicQuantizeLSTM
_CHUNK = 2**20


def finds_ranges(operators: Iterable[Any]) -> bool:
    """Return whether one of a graph's operators finds a range at each call. A range for each token is left out."""
    names = [operator._schema.name.lower() for operator in operators if isinstance(operator, OpOverload)]
    return any(("choose_qparams" in name and "per_token" not in name) or "_dynamic" in name for name in names)


def finds_ranges_in_onnx(model: Path) -> bool:
    """Return whether a model has an operator that finds a range at each call. The file holds their names as text."""
    tail = b""
    with model.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if _IN_ONNX in tail + chunk:
                return True
            tail = chunk[-len(_IN_ONNX) :]
    return False
