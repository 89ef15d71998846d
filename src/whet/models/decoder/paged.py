"""Run a decoder for an engine in plain torch. The native decoder is tested against this one.

Shape suffixes: T tokens of a step, Q tokens of one sequence in the step, C tokens it attends to, D model width, N query
heads, K key-value heads, H head width, R rows whose logits are wanted, V vocabulary. A leading 1 is a batch of one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.errors import OptionError
from whet.models.decoder.paged_cache import PagedCache, bytes_per_block
from whet.models.decoder.reference import Decoder, DecoderLayer, visible
from whet.models.options import checked_length
from whet.models.step import Allocation, Ints, StepBatch, WithoutStates

KV_DTYPES = (torch.float32, torch.bfloat16, torch.int8)


@dataclass(frozen=True)
class _Span:
    """Describe one sequence of a step.

    Attributes:
        rows: Its rows in the step.
        blocks: The blocks that its tokens attend to.
        keys: The keys to attend to, as a slice of the blocks' tokens.
        mask: Which keys each token attends to, bool [Q, C]. None for a single token, which attends to all of them.
    """

    rows: slice
    blocks: Tensor
    keys: slice
    mask: Tensor | None


class PagedDecoder(WithoutStates):
    """Run a decoder as a ServedModel, in the dtype of its weights.

    Attention is computed for one sequence after another, and linear layers for all tokens of a step together. So other
    sequences in a step change only the order of additions. This changes logits by a few millionths of their spread in
    fp32, and by a few hundredths in bf16.

    Args:
        kv_dtype: The dtype of keys and values. By default, that of the weights. torch.int8 has a scale for each head of
            each token.
        max_model_len: The most tokens of a sequence. By default, the model's own limit.

    Raises:
        OptionError: kv_dtype is not supported, or max_model_len is out of range.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        kv_dtype: torch.dtype | None = None,
        max_model_len: int | None = None,
        block_size: int = 16,
    ) -> None:
        config = decoder.config
        self.decoder = decoder.eval()
        self.layers = cast(list[DecoderLayer], list(decoder.layers))
        self.dtype = decoder.embed_tokens.weight.dtype
        self.kv_dtype = kv_dtype or self.dtype
        if self.kv_dtype not in KV_DTYPES:
            raise OptionError(f"keys and values are kept as {', '.join(map(str, KV_DTYPES))}, not as {self.kv_dtype}")
        self.max_model_len = checked_length(max_model_len, config.max_position_embeddings)
        self.vocab_size = config.vocab_size
        self.block_size = block_size
        self.bytes_per_block = bytes_per_block(config, block_size, self.kv_dtype)
        self._windows = [config.window_of(index) for index in range(len(self.layers))]
        self._cache: PagedCache | None = None

    def allocate(self, room: Allocation) -> None:
        self._cache = PagedCache(self.decoder.config, room.num_blocks, self.block_size, self.kv_dtype)

    @torch.no_grad()
    def step(self, batch: StepBatch) -> Tensor:
        assert self._cache is not None, "allocate comes first"
        x_1TD = self.decoder.embed_tokens(_tensor(batch.token_ids))[None]
        cos_TH, sin_TH = self.decoder.rotary(_tensor(batch.positions), x_1TD.dtype)
        slots_T = _tensor(self._slots(batch))
        spans = {window: list(self._spans(batch, window)) for window in set(self._windows)}
        for index, (layer, window) in enumerate(zip(self.layers, self._windows, strict=True)):
            q_1NTH, k_1KTH, v_1KTH = layer.self_attn.project(layer.input_layernorm(x_1TD), cos_TH, sin_TH)
            self._cache.write(index, slots_T, k_1KTH[0].transpose(0, 1), v_1KTH[0].transpose(0, 1))
            mixed_1NTH = torch.cat([self._attend(index, q_1NTH, span) for span in spans[window]], dim=2)
            x_1TD = x_1TD + layer.self_attn.o_proj(mixed_1NTH.transpose(1, 2).flatten(2))
            x_1TD = x_1TD + layer.mlp(layer.post_attention_layernorm(x_1TD))
        x_RD = x_1TD[0, _tensor(batch.logit_rows)]
        logits_RV: Tensor = self.decoder.lm_head(self.decoder.norm(x_RD))
        return logits_RV.float()

    def _slots(self, batch: StepBatch) -> Ints:
        sequence_T = np.repeat(np.arange(len(batch.context_len)), np.diff(batch.query_start))
        blocks_T = batch.block_tables[sequence_T, batch.positions // self.block_size]
        slots_T: Ints = blocks_T * self.block_size + batch.positions % self.block_size
        return slots_T

    def _spans(self, batch: StepBatch, window: int | None) -> Iterator[_Span]:
        """Yield for each sequence what its tokens attend to in the layers with this window."""
        starts, ends = batch.query_start.tolist(), batch.context_len.tolist()
        for sequence, (row, next_row, end) in enumerate(zip(starts[:-1], starts[1:], ends, strict=True)):
            first_query = end - (next_row - row)
            first_key = 0 if window is None else max(0, first_query - window + 1)
            first_block, num_skipped = divmod(first_key, self.block_size)
            blocks = batch.block_tables[sequence, first_block : -(-end // self.block_size)]
            queries_Q, keys_C = torch.arange(first_query, end), torch.arange(first_key, end)
            yield _Span(
                rows=slice(row, next_row),
                blocks=_tensor(blocks),
                keys=slice(num_skipped, num_skipped + end - first_key),
                mask=None if next_row - row == 1 else visible(queries_Q, keys_C, window),
            )

    def _attend(self, layer: int, q_1NTH: Tensor, span: _Span) -> Tensor:
        """Return the attention output of one sequence, [1, N, Q, H]."""
        assert self._cache is not None
        k_CKH, v_CKH = (x[span.keys] for x in self._cache.read(layer, span.blocks, q_1NTH.dtype))
        return F.scaled_dot_product_attention(
            q_1NTH[:, :, span.rows],
            k_CKH.transpose(0, 1)[None],
            v_CKH.transpose(0, 1)[None],
            span.mask,
            enable_gqa=True,
        )


def _tensor(ints: Ints) -> Tensor:
    """Return a copy as int64, the dtype of indices in torch."""
    return torch.tensor(ints, dtype=torch.int64)
