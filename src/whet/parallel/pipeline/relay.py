"""Compute logits without gradients through the stages of all processes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from whet.parallel.pipeline.stages import DecoderStage
from whet.parallel.stream import Stream


class Relay(nn.Module):
    """Stand for a whole decoder in all processes of its stages, which call it together; each gets the logits.

    Args:
        group: The processes of the stages, in their order.
        stream: How each process holds the stream.
        sizes: The widths of the stream and of the logits.
        dtype: Of the stream and of the logits.
    """

    def __init__(
        self,
        stages: Sequence[DecoderStage],
        group: Any,
        stream: Stream,
        sizes: tuple[int, int],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._stages, self._group, self._stream, self._sizes, self._dtype = stages, group, stream, sizes, dtype
        self.held = nn.ModuleList(stages)
        ranks = distributed.get_process_group_ranks(group)
        place = distributed.get_rank(group)
        self._before, self._behind, self._last = ranks[place - 1], ranks[(place + 1) % len(ranks)], ranks[-1]

    @torch.no_grad()
    def logits(self, input_ids_BT: Tensor, *given: Tensor, **named: Tensor) -> Tensor | None:
        """Return the logits [B, T, V] in the process of the last stage, and None in others. All must call it."""
        rows, length = input_ids_BT.shape
        shape = rows, self._stream.num_held(length), self._sizes[0]
        for stage in self._stages:
            x = input_ids_BT
            if not stage.is_first:
                x = torch.empty(shape, dtype=self._dtype, device=input_ids_BT.device)
                distributed.recv(x, self._before, group=self._group)
            found_BTX: Tensor = stage(x, *given, length=length, **named)
            if stage.is_last:
                return found_BTX
            distributed.send(found_BTX.contiguous(), self._behind, group=self._group)
        return None

    @torch.no_grad()
    def forward(self, input_ids_BT: Tensor, *given: Tensor, **named: Tensor) -> Tensor:
        """Map token ids [B, T] to logits [B, T, V], as Decoder.forward does."""
        found = self.logits(input_ids_BT, *given, **named)
        if found is None:
            found = torch.empty(*input_ids_BT.shape, self._sizes[1], dtype=self._dtype, device=input_ids_BT.device)
        distributed.broadcast(found, self._last, group=self._group)
        return found


class KnownLogits(nn.Module):
    """Stand for a model whose logits for the next batch are known."""

    def __init__(self, logits_BTV: Tensor) -> None:
        super().__init__()
        self._logits_BTV = logits_BTV

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        return self._logits_BTV
