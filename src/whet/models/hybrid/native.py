"""Run a hybrid model for an engine with whet's own kernels: weights are packed once, and a step is one call.

Keys and values lie in blocks, and states of Mamba-2 or of short convolutions in rows. Matrices have float32, bf16, int8
or int4 weights; activations and states are float32. A sequence's logits are the same, bit for bit, whatever other
sequences are in the step and however its tokens are divided into steps.
"""

import ctypes
from collections.abc import Mapping
from functools import partial

import numpy as np
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.decoder.structs import Kv
from whet.kernels.decoder.structs import LayerStruct as DecoderLayerStruct
from whet.kernels.hybrid_model.structs import ConvLayerStruct, HybridStruct, MixerFlag
from whet.kernels.linear.packed import Kind
from whet.kernels.linear.places import PRIVATE, Place
from whet.kernels.selective_model.structs import LayerStruct as MambaLayerStruct
from whet.kernels.selective_model.structs import SegmentStruct, TokensStruct
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.native_layers import (
    cache_bytes,
    decoder_struct,
    fill_attention,
    fill_mlp,
    place_caches,
    ragged,
)
from whet.models.hybrid.config import HybridConfig, Multipliers
from whet.models.hybrid.mixers import parts_scale
from whet.models.native_model import NativeModel
from whet.models.native_weights import NativeWeights, Tensors
from whet.models.options import checked_length
from whet.models.selective.config import SelectiveConfig
from whet.models.selective.native import fill_mixer, selective_struct
from whet.models.selective.native_states import NativeStates
from whet.models.step import Allocation, StepBatch

_FLAGS = {"attention": MixerFlag.ATTENTION, "mamba": MixerFlag.MAMBA, "conv": MixerFlag.CONV}
_NUM_COLUMNS = len(SegmentStruct._fields_)


class NativeHybrid(NativeModel):
    """Run a hybrid model as a ServedModel.

    Args:
        weights: The tensors by name, from whet.models.hybrid.files.read_weights. They are copied.
        kind: The format of all matrices, including the head. Convolutions, rates and norms are float32.
        place: The memory that the weights lie in.

    Raises:
        OptionError: max_model_len is out of range.
    """

    def __init__(
        self,
        config: HybridConfig,
        weights: Mapping[str, Tensor],
        library: Library,
        *,
        kind: Kind,
        kv: Kv,
        max_model_len: int | None = None,
        place: Place = PRIVATE,
    ) -> None:
        super().__init__(library, "hybrid", config.vocab_size, kind, place)
        self.config = config
        self.max_model_len = checked_length(max_model_len, config.max_position_embeddings)
        self.kv = kv
        self.bytes_per_block = len(config.layers_with("attention")) * cache_bytes(config.decoder, kv)
        self._states = _states(config)
        self.bytes_per_state = 0 if self._states is None else self._states.bytes_per_state
        self.bytes_per_draft = 0 if self._states is None else self._states.bytes_per_draft
        num_layers = config.num_hidden_layers
        self._decoder_layers = (DecoderLayerStruct * num_layers)()
        self._mamba_layers = (MambaLayerStruct * num_layers)()
        self._convs = (ConvLayerStruct * num_layers)()
        for index in range(num_layers):
            self._fill_layer(index, partial(lambda index, name: weights.get(f"layers.{index}.{name}"), index))
        self._struct = self._whole(weights)

    def allocate(self, room: Allocation) -> None:
        with_attention = [self._decoder_layers[index] for index in self.config.layers_with("attention")]
        self._caches = place_caches(with_attention, room.num_blocks, self.config.decoder, self.kv)
        for layer in self._decoder_layers:
            layer.cache.kind = self.kv
        if self._states is not None:
            of_mamba = [self._mamba_layers[index] for index in self.config.layers_with("mamba")]
            self._states.allocate(room, of_mamba or [self._convs[index] for index in self.config.layers_with("conv")])
        self._struct.num_drafts = self._struct.mamba.num_drafts = room.num_drafts
        self._open(self._struct)

    def copy_state(self, source_row: int, target_row: int) -> None:
        assert self._states is not None, "no layer has a state"
        self._states.copy(source_row, target_row)

    def step(self, batch: StepBatch) -> Tensor:
        no_segments = np.zeros((0, _NUM_COLUMNS), np.int32)
        segments = no_segments if self._states is None else self._states.segments(batch)
        step, _kept = ragged(batch)
        tokens = TokensStruct(len(batch.token_ids), len(segments), segments.ctypes.data)
        return self._run(batch, ctypes.byref(step), ctypes.byref(tokens))

    def _fill_layer(self, index: int, of: Tensors) -> None:
        config, mixers = self.config, self.config.mixers[index]
        decoder_layer, mamba_layer, conv = self._decoder_layers[index], self._mamba_layers[index], self._convs[index]
        if config.has_mlp(index):
            fill_mlp(decoder_layer, self._weights, of, gated=config.mlp == "silu gate")
        if "attention" in mixers:
            factor = config.multipliers.attention_in
            fill_attention(decoder_layer, self._weights, config.decoder, of, factor=factor)
            decoder_layer.window = config.decoder.window_of(index) or 0
        norm = of("input_layernorm.weight")
        if norm is None:
            return
        if "mamba" in mixers and config.mamba is not None:
            fill_mixer(mamba_layer, self._weights, config.mamba, lambda name: of(f"mamba.{name}"))
            mamba_layer.norm = self._weights.floats(norm.float() * config.multipliers.mamba_in)
        if "conv" in mixers:
            _fill_conv(conv, self._weights, of)
            conv.norm = self._weights.floats(norm)

    def _whole(self, weights: Mapping[str, Tensor]) -> HybridStruct:
        config, factors = self.config, self.config.multipliers
        struct = HybridStruct(
            has_mamba=config.mamba is not None,
            conv_taps=config.conv_taps,
            squares=config.mlp == "squared relu",
            embedding_factor=factors.embedding,
            logits_factor=factors.logits,
        )
        decoder = decoder_struct(config.decoder, self._weights, self.max_model_len, has_rotary=config.has_rotary)
        decoder.softmax_scale = factors.scores
        decoder.attention_factor, decoder.gate_factor = factors.attention_out, factors.mlp_gate
        decoder.mlp_factor = factors.mlp_out
        decoder.layers = self._decoder_layers
        self._weights.put_ends(decoder, weights, "embed_tokens.weight", "norm.weight")
        struct.decoder = decoder
        if config.mamba is not None:
            struct.mamba = selective_struct(config.mamba)
            struct.mamba.norms_first = config.gate_order == "norm, then gate"
            struct.mamba.out_factor = factors.mamba_out
            struct.mamba.in_factors = self._weights.floats(parts_scale(config))
        struct.mamba.layers = self._mamba_layers
        struct.convs = self._convs
        flags = [
            sum(int(_FLAGS[mixer]) for mixer in mixers) + (int(MixerFlag.MLP) if config.has_mlp(index) else 0)
            for index, mixers in enumerate(config.mixers)
        ]
        self._mixers = np.array(flags, np.int32)
        struct.mixers = self._mixers.ctypes.data
        return struct


def _states(config: HybridConfig) -> NativeStates | None:
    """Return the rows of states that the layers need; None where all mixers are attention."""
    if config.mamba is not None and config.layers_with("mamba"):
        return NativeStates(config.mamba, len(config.layers_with("mamba")))
    if not config.layers_with("conv"):
        return None
    sizes = SelectiveConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.hidden_size,
        conv_kernel=config.conv_taps,
        state_size=1,
    )
    return NativeStates(sizes, len(config.layers_with("conv")), has_scan=False)


def _fill_conv(layer: ConvLayerStruct, packed: NativeWeights, of: Tensors) -> None:
    """Pack the weights of a short convolution, and fill in its structure, but for the norm before it."""
    convolution = of("conv.conv.weight")
    assert convolution is not None
    layer.in_proj, layer.out_proj = packed.linear(of, "conv.in_proj"), packed.linear(of, "conv.out_proj")
    layer.conv_weight, layer.conv_bias = packed.floats(convolution[:, 0].T), packed.floats(of("conv.conv.bias"))


class NativeDecoder(NativeHybrid):
    """Run a decoder of the Llama family as a ServedModel: a hybrid whose layers all have attention.

    Args:
        weights: The tensors by name, from whet.models.decoder.files.read_weights. They are copied.

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
        max_model_len: int | None = None,
        place: Place = PRIVATE,
    ) -> None:
        whole = HybridConfig(
            model_type=config.model_type,
            keys={},
            mixers=(("attention",),) * config.num_hidden_layers,
            decoder=config,
            multipliers=Multipliers(scores=config.head_dim**-0.5),
        )
        super().__init__(whole, weights, library, kind=kind, kv=kv, max_model_len=max_model_len, place=place)
