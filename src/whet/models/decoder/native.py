"""Run a decoder for an engine with whet's own kernels: weights are packed once, and a step is one call.

Matrices have float32, bf16, int8 or int4 weights; activations are float32. A sequence's logits are the same, bit for
bit, whatever other sequences are in the step and however its tokens are divided into steps.

Shape suffixes: D model width, H head width, L positions, N outputs, K inputs, V vocabulary, R rows of logits.
"""

import ctypes
import weakref
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from whet.errors import OptionError
from whet.kernels.build import Library
from whet.kernels.decoder.structs import CacheStruct, DecoderStruct, Kv, LayerStruct, RaggedStruct
from whet.kernels.linear.layout import interleave
from whet.kernels.linear.packed import LANES, Kind, large_pages
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.rope import inverse_frequencies, rotary_scale
from whet.models.native_weights import NativeWeights
from whet.models.step import Allocation, Ints, StepBatch, WithoutStates

BLOCK_SIZE = 16  # tokens; the same number as in paged_attention/cache.h
_KV_BYTES = {Kv.F32: 4, Kv.BF16: 2, Kv.S8: 1}
_ALIGNMENT = 64


def refusal(config: DecoderConfig) -> str | None:
    """Return why the kernels cannot run this decoder, or None if they can."""
    if config.head_dim % LANES or config.head_dim > 256:
        return f"head_dim is {config.head_dim}, not a multiple of {LANES} up to 256"
    return None


class NativeDecoder(WithoutStates):
    """Run a decoder as a ServedModel.

    Args:
        config: The config of the decoder.
        weights: The tensors by name, from whet.models.decoder.files.read_weights. They are copied.
        library: The compiled kernels.
        kind: The format of all matrices, including the head.
        kv: The format of keys and values.
        max_model_len: The most tokens of a sequence. By default, the model's own limit.

    Raises:
        OptionError: max_model_len is out of range.
    """

    block_size = BLOCK_SIZE

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        library: Library,
        *,
        kind: Kind,
        kv: Kv,
        max_model_len: int | None = None,
    ) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_position_embeddings if max_model_len is None else max_model_len
        if not 0 < self.max_model_len <= config.max_position_embeddings:
            raise OptionError(
                f"max_model_len {self.max_model_len} is not within the 1 to {config.max_position_embeddings} tokens "
                "that the model was made for (max_position_embeddings)"
            )
        self.kind, self.kv = kind, kv
        self.bytes_per_block = config.num_hidden_layers * (2 * _tile_bytes(config, kv) + 2 * _scale_bytes(config, kv))
        self._library = library
        self._weights = NativeWeights(library, kind)  # the memory that the structures below point to
        self._layers = (LayerStruct * config.num_hidden_layers)()
        for index in range(config.num_hidden_layers):
            self._fill_layer(index, weights)
        self._struct = self._whole(weights)
        self._handle: ctypes.c_void_p | None = None
        self._logits_RV = torch.empty(0, config.vocab_size)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the packed matrices. A step for one sequence reads all of them."""
        return self._weights.num_bytes

    def allocate(self, room: Allocation) -> None:
        """Allocate the blocks. There are no states of fixed size."""
        config, kv, num_blocks = self.config, self.kv, room.num_blocks
        tile, scales = num_blocks * _tile_bytes(config, kv), num_blocks * _scale_bytes(config, kv)
        self._cache = large_pages(num_blocks * self.bytes_per_block)  # zeros; pages take memory only once they are used
        memory = self._cache.data_ptr()
        for index, layer in enumerate(self._layers):
            start = memory + index * 2 * (tile + scales)
            layer.cache = CacheStruct(kv, start, start + tile, None, None)
            if scales:
                layer.cache.key_scales = start + 2 * tile
                layer.cache.value_scales = start + 2 * tile + scales
        functions = self._library.functions
        handle = functions.whet_decoder_new(ctypes.byref(self._struct))
        weakref.finalize(self, functions.whet_decoder_free, handle)
        self._handle = ctypes.c_void_p(handle)

    def step(self, batch: StepBatch) -> Tensor:
        """Read the tokens of a step, and return the logits, float32 [R, V]. They are valid until the next step."""
        assert self._handle is not None, "allocate comes first"
        num_logits = len(batch.logit_rows)
        if len(self._logits_RV) < num_logits:
            self._logits_RV = torch.empty(num_logits, self.vocab_size)
        block_tables = np.ascontiguousarray(batch.block_tables)
        ragged = RaggedStruct(
            len(batch.token_ids),
            len(batch.context_len),
            _pointer(batch.positions),
            _pointer(batch.query_start),
            _pointer(batch.context_len),
            _pointer(block_tables),
            block_tables.shape[1],
        )
        failed = self._library.functions.whet_decoder_step(
            self._handle,
            ctypes.byref(ragged),
            ctypes.c_void_p(_pointer(batch.token_ids)),
            ctypes.c_void_p(_pointer(batch.logit_rows)),
            ctypes.c_int32(num_logits),
            ctypes.c_void_p(self._logits_RV.data_ptr()),
        )
        if failed:
            raise MemoryError(f"no memory for a step of {len(batch.token_ids)} tokens")
        return self._logits_RV[:num_logits]

    def _fill_layer(self, index: int, weights: Mapping[str, Tensor]) -> None:
        def of(name: str) -> Tensor | None:
            return weights.get(f"layers.{index}.{name}")

        def joined(*names: str) -> tuple[Tensor, Tensor | None]:
            biases = [bias for name in names if (bias := of(f"{name}.bias")) is not None]
            weight = torch.cat([weights[f"layers.{index}.{name}.weight"] for name in names])
            return weight, torch.cat(biases) if biases else None

        layer = self._layers[index]
        layer.qkv = self._weights.packed(*joined(*(f"self_attn.{part}_proj" for part in "qkv")))
        layer.o = self._weights.packed(*joined("self_attn.o_proj"))
        gate, up = (joined(f"mlp.{part}_proj") for part in ("gate", "up"))
        bias = None if gate[1] is None or up[1] is None else interleave(gate[1], up[1])
        layer.gate_up = self._weights.packed(interleave(gate[0], up[0]), bias)
        layer.down = self._weights.packed(*joined("mlp.down_proj"))
        layer.attention_norm = self._weights.floats(of("input_layernorm.weight"))
        layer.mlp_norm = self._weights.floats(of("post_attention_layernorm.weight"))
        layer.q_norm = self._weights.floats(of("self_attn.q_norm.weight"))
        layer.k_norm = self._weights.floats(of("self_attn.k_norm.weight"))
        layer.window = self.config.window_of(index) or 0

    def _whole(self, weights: Mapping[str, Tensor]) -> DecoderStruct:
        config = self.config
        struct = DecoderStruct(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            vocab=config.vocab_size,
            num_layers=config.num_hidden_layers,
            eps=config.rms_norm_eps,
            softmax_scale=config.head_dim**-0.5,
        )
        struct.heads.num_heads = config.num_attention_heads
        struct.heads.num_kv_heads = config.num_key_value_heads
        struct.heads.head_dim = config.head_dim
        angles_LH = torch.outer(torch.arange(self.max_model_len).float(), inverse_frequencies(config))
        struct.rope.cos = self._weights.floats(angles_LH.cos() * rotary_scale(config))
        struct.rope.sin = self._weights.floats(angles_LH.sin() * rotary_scale(config))
        struct.layers = self._layers
        struct.final_norm = self._weights.floats(weights["norm.weight"])
        embedding_VD = weights["embed_tokens.weight"]
        self._weights.put_vocabulary(struct, embedding_VD, weights.get("lm_head.weight", embedding_VD))
        return struct


def _tile_bytes(config: DecoderConfig, kv: Kv) -> int:
    return BLOCK_SIZE * config.num_key_value_heads * config.head_dim * _KV_BYTES[kv]


def _scale_bytes(config: DecoderConfig, kv: Kv) -> int:
    return BLOCK_SIZE * config.num_key_value_heads * 4 if kv is Kv.S8 else 0


def _pointer(ints: Ints) -> int:
    return int(ints.ctypes.data)
