"""Where Triton's kernels run in these tests: on a GPU, or by Triton's interpreter (TRITON_INTERPRET=1) on the CPU."""

import os
from typing import Any

import numpy as np
import pytest
import torch

from whet.kernels import dispatch


@pytest.fixture
def interpreted() -> bool:
    """Whether Triton interprets the kernels."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture
def device(interpreted: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device of the kernels' tensors. Where they are interpreted, the operators send those of the CPU to Triton."""
    pytest.importorskip("triton")
    if interpreted:
        from triton.runtime.interpreter import ScanOps

        monkeypatch.setattr(dispatch, "triton_devices", lambda: frozenset({"cpu"}))
        monkeypatch.setattr(ScanOps, "generic_scan", scan_by_rows)
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1")
    return "cuda"


def scan_by_rows(self: Any, tensors: tuple[Any, ...]) -> list[Any]:
    """What the interpreter does with each number, for all numbers of a row at once: hundreds of times faster."""
    rows = [np.moveaxis(x.handle.data, self.axis, 0) for x in tensors]
    state = tuple(self.to_tensor(part[0], x.dtype) for part, x in zip(rows, tensors, strict=True))
    found = [[part.handle.data for part in state]]
    for i in range(1, len(rows[0])):
        state = self.combine_fn.fn(*state, *(self.to_tensor(p[i], x.dtype) for p, x in zip(rows, tensors, strict=True)))
        found.append([part.handle.data for part in state])
    stacked = [np.stack(parts, self.axis) for parts in zip(*found, strict=True)]
    return [self.to_tensor(part, x.dtype) for part, x in zip(stacked, tensors, strict=True)]
