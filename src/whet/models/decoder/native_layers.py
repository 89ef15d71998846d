"""Fill in the structures of attention and MLP for whet's kernels, for decoders and for the layers of hybrid models.

Shape suffixes: H head width, R rotated numbers of a head, L positions, N outputs, K inputs.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from whet.kernels.decoder.structs import DecoderStruct, Kv, LayerStruct, RaggedStruct
from whet.kernels.linear.layout import interleave, num_strips
from whet.kernels.linear.packed import LANES, large_pages
from whet.kernels.paged_attention.cache import Batch, KvCache
from whet.kernels.paged_attention.native import cache_struct, ragged_struct
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.rope import inverse_frequencies, rotary_scale
from whet.models.native_weights import NativeWeights, Tensors, weight_and_bias
from whet.models.step import StepBatch

BLOCK_SIZE = 16  # tokens; the same number as in paged_attention/cache.h
_KV_DTYPES = {Kv.F32: torch.float32, Kv.BF16: torch.bfloat16, Kv.S8: torch.int8}


def refusal(config: DecoderConfig) -> str | None:
    """Return why the kernels cannot run a decoder's attention, or None if they can."""
    if config.head_dim % LANES or config.head_dim > 256:
        return f"head_dim is {config.head_dim}, not a multiple of {LANES} up to 256"
    return None


def fill_attention(
    layer: LayerStruct, packed: NativeWeights, config: DecoderConfig, of: Tensors, *, factor: float = 1.0
) -> None:
    """Pack the weights of a layer's attention, and fill in its structure. `factor` multiplies its normalised input."""
    norm = of("input_layernorm.weight")
    assert norm is not None
    weights, biases = zip(*(weight_and_bias(of, f"self_attn.{name}_proj") for name in "qkv"), strict=True)
    num_outputs = sum(map(len, weights))
    weight = packed.prepared(lambda: _joined(config, *weights), num_outputs, weights[0].shape[1])
    layer.qkv = packed.packed(weight, None if biases[0] is None else _joined(config, *biases))
    layer.o = packed.linear(of, "self_attn.o_proj")
    layer.attention_norm = packed.floats(norm.float() * factor)
    for name in ("q_norm", "k_norm"):
        of_heads = of(f"self_attn.{name}.weight")
        setattr(layer, name, packed.floats(None if of_heads is None else _rotated_first(config, of_heads)))


def fill_mlp(layer: LayerStruct, packed: NativeWeights, of: Tensors, *, gated: bool = True) -> None:
    """Pack the weights of a layer's MLP, and fill in its structure. Where it is not `gated`, it squares a ReLU."""
    up, bias = weight_and_bias(of, "mlp.up_proj")
    if gated:
        gate, gate_bias = weight_and_bias(of, "mlp.gate_proj")
        bias = None if gate_bias is None or bias is None else interleave(gate_bias, bias)
        num_outputs = 2 * LANES * num_strips(len(up))
        layer.gate_up = packed.packed(packed.prepared(lambda: interleave(gate, up), num_outputs, up.shape[1]), bias)
    else:
        layer.gate_up = packed.packed(up, bias)
    layer.down = packed.linear(of, "mlp.down_proj")
    layer.mlp_norm = packed.floats(of("post_attention_layernorm.weight"))


def decoder_struct(
    config: DecoderConfig, packed: NativeWeights, num_positions: int, *, has_rotary: bool = True
) -> DecoderStruct:
    """Return the structure of a decoder with its sizes and rotary tables, without layers, final norm and vocabulary."""
    struct = DecoderStruct(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        num_layers=config.num_hidden_layers,
        eps=config.rms_norm_eps,
        softmax_scale=config.head_dim**-0.5,
        attention_factor=1.0,
        gate_factor=1.0,
        mlp_factor=1.0,
    )
    struct.heads.num_heads = config.num_attention_heads
    struct.heads.num_kv_heads = config.num_key_value_heads
    struct.heads.head_dim = config.head_dim
    if has_rotary:
        sizes = num_positions, config.head_dim // 2
        cos_LH, sin_LH = (packed.prepared(partial(_angles, config, num_positions, of), *sizes) for of in ("cos", "sin"))
        struct.rope.cos, struct.rope.sin = packed.floats(cos_LH), packed.floats(sin_LH)
    return struct


def _angles(config: DecoderConfig, num_positions: int, of: Literal["cos", "sin"]) -> Tensor:
    """Return the cosines or sines of a head's angles at all positions, [L, H/2]; of 0 for what is not rotated."""
    angles_LR = torch.outer(torch.arange(num_positions).float(), inverse_frequencies(config))
    found_LH = torch.full((num_positions, config.head_dim // 2), 1.0 if of == "cos" else 0.0)
    found_LH[:, : angles_LR.shape[1]] = getattr(angles_LR, of)() * rotary_scale(config)
    return found_LH


def cache_bytes(config: DecoderConfig, kv: Kv) -> int:
    """Return the bytes of a block of keys and values in one layer."""
    of_head = config.head_dim * _KV_DTYPES[kv].itemsize + (4 if kv is Kv.S8 else 0)  # its numbers, and their scale
    return 2 * BLOCK_SIZE * config.num_key_value_heads * of_head


def place_caches(layers: Sequence[LayerStruct], num_blocks: int, config: DecoderConfig, kv: Kv) -> list[KvCache]:
    """Allocate the blocks of some layers, write their addresses into the structures, and return them to be kept."""
    size = num_blocks * cache_bytes(config, kv)
    memory = large_pages(len(layers) * size)  # zeros; pages take memory only once they are used
    caches = []
    for index, layer in enumerate(layers):
        like = KvCache.empty(0, config.num_key_value_heads, config.head_dim, _KV_DTYPES[kv])
        tensors = [x for x in (like.keys, like.values, like.key_scales, like.value_scales) if x is not None]
        sizes = [num_blocks * math.prod(x.shape[1:]) * x.itemsize for x in tensors]
        parts = zip(memory[index * size :][:size].split(sizes), tensors, strict=True)
        caches.append(KvCache(*(part.view(x.dtype).view(num_blocks, *x.shape[1:]) for part, x in parts)))
        layer.cache = cache_struct(caches[-1])
    return caches


def ragged(batch: StepBatch) -> tuple[RaggedStruct, Batch]:
    """Return the structure of a step, and the arrays that it points into, to be kept."""
    arrays = (batch.positions, batch.query_start, batch.context_len, np.ascontiguousarray(batch.block_tables))
    kept = Batch(*map(torch.from_numpy, arrays))
    return ragged_struct(kept), kept


def _joined(config: DecoderConfig, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the rows of queries, keys and values below each other, as the kernel rotates them."""
    return torch.cat((_rotated_first(config, queries), _rotated_first(config, keys), values))


def _rotated_first(config: DecoderConfig, rows: Tensor) -> Tensor:
    """Order each head's rows so that the kernel, which turns pairs (i, i + H/2), turns the pairs (i, i + R/2).

    The rows that are not rotated become pairs too, whose angles are 0. Queries and keys have the same order, so that
    their products stay.
    """
    H, R = config.head_dim, config.rotary_dim
    if R == H:
        return rows
    first, second = torch.arange(R).chunk(2)
    rest_first, rest_second = torch.arange(R, H).chunk(2)
    order = torch.cat((first, rest_first, second, rest_second))
    ordered: Tensor = rows.unflatten(0, (-1, H))[:, order].flatten(0, 1)
    return ordered
