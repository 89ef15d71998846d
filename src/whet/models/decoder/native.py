"""Run a decoder for an engine with whet's own kernels: weights are packed once, and a step is one call.

Matrices have float32, bf16, int8 or int4 weights; activations are float32. A sequence's logits are the same, bit for
bit, whatever other sequences are in the step and however its tokens are divided into steps.

Shape suffixes: D model width, H head width, L positions, N outputs, K inputs, V vocabulary, R rows of logits.
"""

import ctypes
from collections.abc import Mapping
from functools import partial

from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.decoder.structs import Kv, LayerStruct
from whet.kernels.linear.packed import LANES, Kind
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.native_layers import (
    BLOCK_SIZE,
    cache_bytes,
    decoder_struct,
    fill_attention,
    fill_mlp,
    place_caches,
    ragged_struct,
)
from whet.models.native_calls import NativeCalls
from whet.models.native_weights import NativeWeights
from whet.models.options import checked_length
from whet.models.step import Allocation, StepBatch, WithoutStates


def refusal(config: DecoderConfig) -> str | None:
    """Return why the kernels cannot run this decoder, or None if they can."""
    if config.head_dim % LANES or config.head_dim > 256:
        return f"head_dim is {config.head_dim}, not a multiple of {LANES} up to 256"
    return None


class NativeDecoder(WithoutStates):
    """Run a decoder as a ServedModel.

    Args:
        weights: The tensors by name, from whet.models.decoder.files.read_weights. They are copied.
        kind: The format of all matrices, including the head.
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
        self.max_model_len = checked_length(max_model_len, config.max_position_embeddings)
        self.kind, self.kv = kind, kv
        self.bytes_per_block = config.num_hidden_layers * cache_bytes(config, kv)
        self._library = library
        self._weights = NativeWeights(library, kind)  # the memory that the structures below point to
        self._layers = (LayerStruct * config.num_hidden_layers)()
        for index, layer in enumerate(self._layers):
            of = partial(lambda index, name: weights.get(f"layers.{index}.{name}"), index)
            fill_attention(layer, self._weights, config, of)
            fill_mlp(layer, self._weights, of)
            layer.window = config.window_of(index) or 0
        self._struct = decoder_struct(config, self._weights, self.max_model_len)
        self._struct.layers = self._layers
        self._struct.final_norm = self._weights.floats(weights["norm.weight"])
        embedding_VD = weights["embed_tokens.weight"]
        self._weights.put_vocabulary(self._struct, embedding_VD, weights.get("lm_head.weight", embedding_VD))
        self._calls = NativeCalls(library, "decoder", config.vocab_size)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the packed matrices. A step for one sequence reads all of them."""
        return self._weights.num_bytes

    def allocate(self, room: Allocation) -> None:
        """Allocate the blocks. There are no states of fixed size."""
        self._cache = place_caches(list(self._layers), room.num_blocks, self.config, self.kv)
        self._calls.open(self._struct)

    def step(self, batch: StepBatch) -> Tensor:
        """Read the tokens of a step, and return the logits, float32 [R, V]. They are valid until the next step."""
        ragged, _kept = ragged_struct(batch)
        return self._calls.step(batch, ctypes.byref(ragged))
