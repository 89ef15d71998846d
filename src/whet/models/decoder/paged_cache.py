"""Keep the keys and values of a decoder's layers in blocks. Sequences hold blocks in any order, and may share them.

Shape suffixes: T tokens, K key-value heads, H head width.
"""

import torch
from torch import Tensor

from whet.errors import OptionError
from whet.models.decoder.config import DecoderConfig

LARGEST = 127  # int8 values are used from -127 to 127
TINY = torch.finfo(torch.float32).tiny  # the least divisor, so that a head of zeros stays zero


class PagedCache:
    """Hold blocks of keys and values for each layer. A token's slot is block * block_size + its place in the block.

    Raises:
        OptionError: There is not enough memory.
    """

    def __init__(self, config: DecoderConfig, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        shape = (config.num_hidden_layers, num_blocks, block_size, config.num_key_value_heads, config.head_dim)
        try:
            self.keys, self.values = _Store(shape, dtype), _Store(shape, dtype)
        except RuntimeError as error:
            size = num_blocks * bytes_per_block(config, block_size, dtype)
            raise OptionError(
                f"not enough memory for {num_blocks:,} blocks of keys and values, {size:,} bytes: lower `memory`"
            ) from error

    def write(self, layer: int, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        self.keys.write(layer, slots_T, k_TKH)
        self.values.write(layer, slots_T, v_TKH)

    def read(self, layer: int, blocks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values in some blocks, in order. Both are [len(blocks) * block_size, K, H]."""
        return self.keys.read(layer, blocks, dtype), self.values.read(layer, blocks, dtype)


class _Store:
    """Hold numbers [layers, blocks, block_size, K, H]. In int8, a scale maps the largest of a token's head to 127."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.numbers = torch.zeros(shape, dtype=dtype)
        self.scales = torch.zeros((*shape[:-1], 1)) if dtype == torch.int8 else None

    def write(self, layer: int, slots_T: Tensor, x_TKH: Tensor) -> None:
        if self.scales is not None:
            scale_TK1 = x_TKH.float().abs().amax(-1, keepdim=True) / LARGEST
            self.scales[layer].flatten(0, 1)[slots_T] = scale_TK1
            x_TKH = (x_TKH.float() / scale_TK1.clamp(min=TINY)).round()
        self.numbers[layer].flatten(0, 1)[slots_T] = x_TKH.to(self.numbers.dtype)

    def read(self, layer: int, blocks: Tensor, dtype: torch.dtype) -> Tensor:
        x_TKH = self.numbers[layer, blocks].flatten(0, 1)
        if self.scales is not None:
            x_TKH = x_TKH.float() * self.scales[layer, blocks].flatten(0, 1)
        return x_TKH.to(dtype)


def bytes_per_block(config: DecoderConfig, block_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of a block in all layers together."""
    per_head = config.head_dim * dtype.itemsize + (4 if dtype == torch.int8 else 0)
    return 2 * config.num_hidden_layers * block_size * config.num_key_value_heads * per_head
