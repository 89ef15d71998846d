"""Compute attention within segments: a token sees itself and the tokens before it in its own segment, and no others.

Shape suffixes: B batch, R segments of all rows, T tokens, P tokens before them in their segment, D model width,
N query heads, K key-value heads, H head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whet.models.decoder.reference import Attention


@dataclass
class SegmentState:
    """Hold the rotated keys and the values of the tokens that a segment has so far: less than a segment."""

    keys_BKPH: Tensor
    values_BKPH: Tensor


class SegmentAttention(Attention):
    """Compute causal self-attention within segments. It has the weights of a Llama's attention."""

    def whole(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        """Map whole segments, next to each other, [B, n * segment, D] to [B, n * segment, D].

        Cosines and sines are those of the rotary angles of one segment.
        """
        x_RTD = x_BTD.reshape(-1, len(cos_TH), x_BTD.shape[-1])
        output_RTD: Tensor = self(x_RTD, cos_TH, sin_TH)
        return output_RTD.view(x_BTD.shape)

    def part(
        self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor, state: SegmentState, *, ends: bool
    ) -> tuple[Tensor, SegmentState]:
        """Map tokens of one segment [B, T, D] to [B, T, D], and return the state after them too.

        `ends` says whether the segment ends with these tokens.
        """
        q_BNTH, k_BKTH, v_BKTH = self.project(x_BTD, cos_TH, sin_TH)
        keys, values = torch.cat((state.keys_BKPH, k_BKTH), 2), torch.cat((state.values_BKPH, v_BKTH), 2)
        T, num_past = x_BTD.shape[1], state.keys_BKPH.shape[2]
        mask = None
        if num_past and T > 1:
            mask = torch.ones(T, num_past + T, dtype=torch.bool, device=x_BTD.device).tril(num_past)
        output_BTD = self.mixed(q_BNTH, keys, values, mask, is_causal=not num_past and T > 1)
        if ends:
            keys, values = keys[:, :, :0], values[:, :, :0]
        return output_BTD, SegmentState(keys, values)
