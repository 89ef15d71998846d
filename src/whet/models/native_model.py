"""Hold what models of whet's kernels have in common, for all families: packed weights, logits, and the calls."""

import ctypes
import weakref
from typing import Any

import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.linear.packed import Kind
from whet.kernels.linear.places import PRIVATE, Place
from whet.models.native_weights import NativeWeights
from whet.models.step import StepBatch


class NativeModel:
    """Call the functions that the kernels export for a family, whet_FAMILY_step and those that make and free a model.

    Args:
        kind: The format of all matrices, including the head.
        place: The memory that the weights lie in.
    """

    can_rewind = True
    bytes_to_rewind = 0
    block_size = 16

    def __init__(self, library: Library, family: str, vocab_size: int, kind: Kind, place: Place = PRIVATE) -> None:
        self.vocab_size, self.kind = vocab_size, kind
        self._library = library
        self._weights = NativeWeights(library, kind, place)  # the memory that the model's structures point to
        self._new, self._free, self._step = (
            getattr(library.functions, f"whet_{family}_{end}") for end in ("new", "free", "step")
        )
        self._opened: ctypes.c_void_p | None = None
        self._logits_RV = torch.empty(0, vocab_size)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the packed matrices. A step for one sequence reads all of them."""
        return self._weights.num_bytes

    @property
    def _handle(self) -> ctypes.c_void_p:
        assert self._opened is not None, "allocate comes first"
        return self._opened

    def _open(self, struct: ctypes.Structure) -> None:
        """Make the model from its structure, whose memory the caller keeps."""
        handle = self._new(ctypes.byref(struct))
        weakref.finalize(self, self._free, handle)
        self._opened = ctypes.c_void_p(handle)

    def _run(self, batch: StepBatch, *parts: Any) -> Tensor:
        """Run a step, and return the logits, float32 [R, V]. They are valid until the next step.

        Args:
            parts: The first arguments of the family's function: which sequences the tokens belong to.

        Raises:
            MemoryError: There is no memory for the step.
        """
        num_logits = len(batch.logit_rows)
        if len(self._logits_RV) < num_logits:
            self._logits_RV = torch.empty(num_logits, self.vocab_size)
        failed = self._step(
            self._handle,
            *parts,
            batch.token_ids.ctypes.data,
            batch.logit_rows.ctypes.data,
            num_logits,
            self._logits_RV.data_ptr(),
        )
        if failed:
            raise self._error_of(failed, len(batch.token_ids))
        return self._logits_RV[:num_logits]

    def _error_of(self, failed: int, num_tokens: int) -> Exception:
        """Return the error for what a step returned that is not 0."""
        return MemoryError(f"no memory for a step of {num_tokens} tokens")
