"""Run one process's share of a decoder in whet's own kernels; the first process's steps are those of all."""

import mmap
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from whet.errors import RanksError
from whet.kernels.build import Library
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind
from whet.kernels.process_group.group import ProcessGroup, group_bytes
from whet.kernels.process_group.structs import MOST_ROWS, GroupSizesStruct
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.native_layers import BLOCK_SIZE
from whet.models.decoder.share import Share, divided_config, divided_weights
from whet.models.hybrid.native import NativeDecoder

_SIZES = 4  # whole numbers that each call begins with
_FAILED = 2  # what a step returns where a process of the group has failed


class StepBounds(NamedTuple):
    """Hold the most tokens and sequences of a step, and after how many seconds a silent process counts as failed."""

    num_tokens: int
    num_seqs: int
    timeout_s: float


class NativeShare(NativeDecoder):
    """Run a share of a decoder. `join` comes before `allocate`; then the first process steps, and the others follow.

    Args:
        config: The config of the whole decoder.
        weights: The tensors of the whole decoder, of which those of the share are copied.

    Raises:
        OptionError: max_model_len is out of range.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        library: Library,
        *,
        kind: Kind,
        kv: Kv,
        share: Share,
        max_model_len: int | None = None,
    ) -> None:
        mine = divided_config(config, share), divided_weights(config, weights, share)
        super().__init__(*mine, library, kind=kind, kv=kv, max_model_len=max_model_len)
        self._share = share
        self.group: ProcessGroup | None = None

    def shared_bytes(self, bounds: StepBounds) -> int:
        """Return the bytes of memory that the processes share."""
        return group_bytes(self._library, self._sizes(bounds))

    def join(self, bounds: StepBounds, memory: mmap.mmap) -> ProcessGroup:
        """Join the group of all processes in memory that they all have mapped, and that began as zeros."""
        self.group = ProcessGroup(self._library, self._sizes(bounds), memory)
        self._struct.decoder.group = self.group.handle
        self._logits_RV = self.group.logits
        return self.group

    def follow(self) -> None:
        """Compute the steps of the first process until it ends the group, or a process fails.

        Raises:
            MemoryError: There is no memory for a step.
        """
        if self._library.functions.whet_hybrid_follow(self._handle) == 1:
            raise MemoryError("no memory for a step")

    def _error_of(self, failed: int, num_tokens: int) -> Exception:
        if failed == _FAILED and self.group is not None:
            return RanksError(f"rank {self.group.failed} has ended or does not answer")
        return super()._error_of(failed, num_tokens)

    def _sizes(self, bounds: StepBounds) -> GroupSizesStruct:
        blocks = -(-self.max_model_len // BLOCK_SIZE)
        logits = self._share.of(self.vocab_size)
        return GroupSizesStruct(
            rank=self._share.rank,
            num_ranks=self._share.num_ranks,
            hidden=self.config.hidden_size,
            vocab=self.vocab_size,
            most_rows=min(MOST_ROWS, bounds.num_tokens),
            most_tokens=bounds.num_tokens,
            most_ints=_SIZES + 3 * bounds.num_tokens + 1 + bounds.num_seqs * (2 + blocks),
            first_logit=logits.start,
            num_logits=logits.stop - logits.start,
            timeout_s=bounds.timeout_s,
        )
