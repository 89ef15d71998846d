"""Hold a model of whet's kernels and its logits, and call its steps, for all families alike."""

import ctypes
import weakref
from typing import Any

import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.models.step import StepBatch


class NativeCalls:
    """Call the functions that the kernels export for one family.

    They are whet_FAMILY_step and those that make and free a model.
    """

    def __init__(self, library: Library, family: str, vocab_size: int) -> None:
        functions = library.functions
        self._new, self._free, self._step = (
            getattr(functions, f"whet_{family}_{end}") for end in ("new", "free", "step")
        )
        self._handle: ctypes.c_void_p | None = None
        self._logits_RV = torch.empty(0, vocab_size)

    @property
    def handle(self) -> ctypes.c_void_p:
        """Return the model that `open` made."""
        assert self._handle is not None, "allocate comes first"
        return self._handle

    def open(self, struct: ctypes.Structure) -> None:
        """Make the model from its structure, whose memory the caller keeps."""
        handle = self._new(ctypes.byref(struct))
        weakref.finalize(self, self._free, handle)
        self._handle = ctypes.c_void_p(handle)

    def step(self, batch: StepBatch, *parts: Any) -> Tensor:
        """Run a step, and return the logits, float32 [R, V]. They are valid until the next step.

        Args:
            parts: The first arguments of the family's function: which sequences the tokens belong to.

        Raises:
            MemoryError: There is no memory for the step.
        """
        num_logits = len(batch.logit_rows)
        if len(self._logits_RV) < num_logits:
            self._logits_RV = torch.empty(num_logits, self._logits_RV.shape[1])
        failed = self._step(
            self.handle,
            *parts,
            batch.token_ids.ctypes.data,
            batch.logit_rows.ctypes.data,
            num_logits,
            self._logits_RV.data_ptr(),
        )
        if failed:
            raise MemoryError(f"no memory for a step of {len(batch.token_ids)} tokens")
        return self._logits_RV[:num_logits]
