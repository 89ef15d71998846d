"""Store keys and values of one layer in blocks of 16 tokens, in the order in which the kernels read them (see cache.h).

Shape suffixes: B blocks, K key-value heads, H head width, L places of a block, P numbers of a pack, T tokens.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whet.errors import InputsError

BLOCK_SIZE = 16  # tokens
DTYPES = (torch.float32, torch.bfloat16, torch.int8)
_LARGEST = 127  # of int8, on both sides of zero
_WIDEST = 256  # head the kernels have room for


class Batch(NamedTuple):
    """T tokens of S sequences, as whet.models.step.StepBatch has them: int32 tensors, contiguous.

    positions [T], query_start [S + 1], context_len [S], block_tables [S, blocks]
    """

    positions: Tensor
    query_start: Tensor
    context_len: Tensor
    block_tables: Tensor

    def sequences(self) -> Tensor:
        """Return the sequence of each token, int64 [T]."""
        counts = self.query_start.diff().long()
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


@dataclass(frozen=True)
class KvCache:
    """Hold the keys and values of one layer. Places after the last token of a sequence's last block hold zero values.

    Attributes:
        keys: [B, K, H / pack, L, pack], where pack is 1 in float32, 2 in bf16 and int8.
        values: [B, K, L / pack, H, pack].
        key_scales: float32 [B, K, L] in int8, a scale for each head of each token; None otherwise.
        value_scales: The same for the values.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @classmethod
    def empty(cls, num_blocks: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> "KvCache":
        """Make a cache of `num_blocks` blocks, filled with zeros.

        Raises:
            InputsError: The kernels do not take this type or width.
        """
        if dtype not in DTYPES:
            raise InputsError(f"keys and values are kept as {', '.join(map(str, DTYPES))}, not as {dtype}")
        if head_dim % BLOCK_SIZE or not 0 < head_dim <= _WIDEST:
            raise InputsError(f"heads are a multiple of {BLOCK_SIZE} wide, up to {_WIDEST}, not {head_dim}")
        pack = _pack(dtype)
        keys = torch.zeros(num_blocks, num_kv_heads, head_dim // pack, BLOCK_SIZE, pack, dtype=dtype)
        values = torch.zeros(num_blocks, num_kv_heads, BLOCK_SIZE // pack, head_dim, pack, dtype=dtype)
        if dtype != torch.int8:
            return cls(keys, values)
        scales = torch.zeros(num_blocks, num_kv_heads, BLOCK_SIZE)
        return cls(keys, values, scales, scales.clone())

    @property
    def num_kv_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def head_dim(self) -> int:
        return self.values.shape[3]

    def check(self) -> None:
        """Raise InputsError unless the tensors fit each other. A kernel would read beyond wrong ones."""
        if self.keys.dtype not in DTYPES or self.values.dim() != 5:
            raise InputsError("a cache's keys and values come from KvCache.empty")
        wanted = KvCache.empty(0, self.num_kv_heads, self.head_dim, self.keys.dtype)
        for name in ("keys", "values", "key_scales", "value_scales"):
            tensor, like = getattr(self, name), getattr(wanted, name)
            if (tensor is None) != (like is None):
                raise InputsError(f"{name} are there in int8, and only there")
            if like is None:
                continue
            shape = (len(self.keys), *like.shape[1:])
            if tensor.shape != shape or tensor.dtype != like.dtype or not tensor.is_contiguous():
                raise InputsError(
                    f"the cache's {name} are {like.dtype} {list(shape)}, contiguous; not {tensor.dtype} "
                    f"{list(tensor.shape)}"
                )

    def write(self, batch: Batch, k_TKH: Tensor, v_TKH: Tensor) -> None:
        """Keep the keys and values of the batch's tokens, rounded; zero the values after a sequence's last one."""
        sequence_T = batch.sequences()
        position_T = batch.positions.long()
        block_T, place_T = batch.block_tables[sequence_T, position_T // BLOCK_SIZE].long(), position_T % BLOCK_SIZE
        pack = self.keys.shape[-1]
        k_TKH, k_scale_TK = _rounded(k_TKH, self.keys.dtype)
        v_TKH, v_scale_TK = _rounded(v_TKH, self.keys.dtype)
        _keys_by_place(self.keys)[block_T, place_T] = k_TKH.unflatten(-1, (-1, pack))
        _values_by_place(self.values)[block_T, place_T // pack, place_T % pack] = v_TKH
        if self.key_scales is not None and self.value_scales is not None:
            assert k_scale_TK is not None and v_scale_TK is not None
            self.key_scales.transpose(1, 2)[block_T, place_T] = k_scale_TK
            self.value_scales.transpose(1, 2)[block_T, place_T] = v_scale_TK
        for first, end in zip(batch.query_start[:-1].tolist(), batch.query_start[1:].tolist(), strict=True):
            if end > first and position_T[end - 1] - place_T[end - 1] >= position_T[first]:
                self._clear_after(int(block_T[end - 1]), int(place_T[end - 1]))

    def _clear_after(self, block: int, place: int) -> None:
        rest = torch.arange(place + 1, BLOCK_SIZE, device=self.keys.device)
        pack = self.keys.shape[-1]
        _values_by_place(self.values)[block, rest // pack, rest % pack] = 0
        if self.value_scales is not None:
            self.value_scales[block, :, place + 1 :] = 0

    def read(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of some blocks, in order, each float32 [len(blocks) * 16, K, H]."""
        k_BLKH = _keys_by_place(self.keys)[blocks].flatten(3).float()
        v_BLKH = _values_by_place(self.values)[blocks].flatten(1, 2).float()
        if self.key_scales is not None and self.value_scales is not None:
            k_BLKH = k_BLKH * self.key_scales[blocks].transpose(1, 2)[..., None]
            v_BLKH = v_BLKH * self.value_scales[blocks].transpose(1, 2)[..., None]
        return k_BLKH.flatten(0, 1), v_BLKH.flatten(0, 1)


def check_batch(cache: KvCache, batch: Batch, num_tokens: int) -> None:
    """Raise InputsError unless a kernel would read and write only inside the cache and the batch."""
    for name, tensor in batch._asdict().items():
        if tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise InputsError(f"{name} are int32, contiguous; not {tensor.dtype}")
    positions, query_start, context_len, block_tables = batch
    num_seqs = len(context_len)
    if len(positions) != num_tokens or len(query_start) != num_seqs + 1 or len(block_tables) != num_seqs:
        raise InputsError(
            f"{num_tokens} tokens of {num_seqs} sequences have as many positions, {num_seqs + 1} starts and "
            f"{num_seqs} tables; not {len(positions)}, {len(query_start)} and {len(block_tables)}"
        )
    if num_tokens == 0:
        return
    new = query_start.diff()
    if query_start[0] != 0 or query_start[-1] != num_tokens or (new < 0).any() or (new > context_len).any():
        raise InputsError("query_start rises from 0 to the number of tokens, and no sequence has more than its context")
    sequence_T = batch.sequences()
    order_T = torch.arange(num_tokens, device=positions.device) - query_start[sequence_T]
    if (positions != (context_len - new)[sequence_T] + order_T).any():
        raise InputsError("a sequence's tokens are the last of its context, in order; the positions are not theirs")
    used = torch.arange(block_tables.shape[1], device=positions.device) * BLOCK_SIZE < context_len[:, None]
    if (context_len > block_tables.shape[1] * BLOCK_SIZE).any():
        raise InputsError(f"a table of {block_tables.shape[1]} blocks is too short for {int(context_len.max())} tokens")
    if ((block_tables < 0) | (block_tables >= len(cache.keys)))[used].any():
        raise InputsError(f"the cache has blocks 0 to {len(cache.keys) - 1}, and a table names others")


def _pack(dtype: torch.dtype) -> int:
    return 1 if dtype == torch.float32 else 2


def _keys_by_place(keys: Tensor) -> Tensor:
    """Return a view [B, L, K, H / pack, pack]."""
    return keys.permute(0, 3, 1, 2, 4)


def _values_by_place(values: Tensor) -> Tensor:
    """Return a view [B, L / pack, pack, K, H]."""
    return values.permute(0, 2, 4, 1, 3)


def _rounded(x_TKH: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    if dtype != torch.int8:
        return x_TKH.to(dtype), None
    most_TK1 = x_TKH.float().abs().amax(-1, keepdim=True)
    inverse_TK1 = torch.where(most_TK1 > 0, _LARGEST / most_TK1, 0.0)
    return (x_TKH.float() * inverse_TK1).round().to(dtype), most_TK1[..., 0] / _LARGEST
