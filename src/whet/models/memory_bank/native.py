"""Run a decoder with long-term memory for an engine with whet's own kernels: a step is one call.

Matrices have float32, bf16, int8 or int4 weights; activations and memories are float32. A sequence's logits are the
same, bit for bit, whatever other sequences are in the step and however its tokens are divided into steps.

Shape suffixes: D model width, C memory width, S slots, V vocabulary, R rows of logits.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.decoder.structs import Kv
from whet.kernels.decoder.structs import LayerStruct as DecoderLayerStruct
from whet.kernels.linear.packed import LANES, Kind
from whet.kernels.linear.places import PRIVATE, Place
from whet.kernels.memory_model.structs import MemoryLayerStruct, MemoryModelStruct, SizesStruct
from whet.models.decoder.native_layers import decoder_struct, fill_attention, fill_mlp
from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.native_layout import RowLayout, padded
from whet.models.memory_bank.native_states import NativeStates
from whet.models.memory_bank.served_memory import ServedMemory, digest_of
from whet.models.memory_bank.spans import in_spans
from whet.models.memory_bank.state import LtmState
from whet.models.native_model import NativeModel
from whet.models.native_weights import NativeWeights
from whet.models.options import checked_length
from whet.models.step import Allocation, StepBatch

Tensors = Mapping[str, Tensor]


class NativeLtm(NativeModel, ServedMemory):
    """Run a decoder with long-term memory as a ServedModel.

    Args:
        weights: The tensors by name, from whet.models.memory_bank.files.read_weights. They are copied.
        kind: The format of all matrices, including the head. Memories, queries of slots and norms are float32.
        place: The memory that the weights lie in.

    Raises:
        OptionError: max_model_len is out of range.
    """

    bytes_per_block = 0

    def __init__(
        self,
        config: LtmConfig,
        weights: Tensors,
        library: Library,
        *,
        kind: Kind,
        kv: Kv,
        max_model_len: int | None = None,
        place: Place = PRIVATE,
    ) -> None:
        super().__init__(library, "memory", config.vocab_size, kind, place)
        self.config = self.memory_config = config
        self.digest = self._weights.noted("digest", lambda: digest_of(config, weights))
        self.max_model_len = checked_length(max_model_len)
        self.can_rewind = not config.use_adaptive_compression  # slots that are gone do not come back
        self.kv = kv
        self._states = NativeStates(config, kv)
        self.bytes_per_state, self.bytes_per_draft = self._states.bytes_per_state, self._states.bytes_per_draft
        self.bytes_to_rewind = self._states.bytes_to_rewind
        self._decoder_layers = (DecoderLayerStruct * config.num_hidden_layers)()
        self._layers = (MemoryLayerStruct * config.num_hidden_layers)()
        for index, (decoder_layer, layer) in enumerate(zip(self._decoder_layers, self._layers, strict=True)):
            of = partial(lambda index, name: weights.get(f"layers.{index}.{name}"), index)
            fill_attention(decoder_layer, self._weights, config.decoder, of)
            if config.intermediate_size:
                fill_mlp(decoder_layer, self._weights, of)
            if config.has_memory(index) and self._states.layout.state_size:
                prefix = f"layers.{index}."
                own = {name.removeprefix(prefix): x for name, x in weights.items() if name.startswith(prefix)}
                _fill_memories(layer, self._weights, config, own)
        self._struct = self._whole(weights)

    def allocate(self, room: Allocation) -> None:
        self._states.allocate(room, list(self._layers), list(self._decoder_layers))
        self._struct.num_drafts = room.num_drafts
        self._open(self._struct)

    def copy_state(self, source_row: int, target_row: int) -> None:
        self._states.copy(source_row, target_row)

    def step(self, batch: StepBatch) -> Tensor:
        if not self.config.use_adaptive_compression:
            return self._read(batch)
        logits_RV = torch.empty(len(batch.logit_rows), self.vocab_size)
        for part in in_spans(batch, self.config.span):
            logits_RV[torch.from_numpy(part.logit_places).long()] = self._read(part.batch)
            for row in part.ended_rows:
                self._states.adapt(row)
                self._library.functions.whet_memory_derive(self._handle, row)
        return logits_RV

    def _read(self, batch: StepBatch) -> Tensor:
        segments = np.ascontiguousarray(np.stack(self._states.places.take(batch), axis=1), dtype=np.int32)
        return self._run(batch, segments.ctypes.data, len(segments), len(batch.token_ids))

    def read_state(self, row: int, num_tokens: int | None = None) -> LtmState:
        return replace(self._states.read(row, num_tokens), model=self.digest)

    def write_state(self, row: int, state: LtmState) -> None:
        self._states.write(row, state)
        self._library.functions.whet_memory_derive(self._handle, row)

    def _whole(self, weights: Tensors) -> MemoryModelStruct:
        config, layout = self.config, self._states.layout
        struct = MemoryModelStruct(segment=config.attention_block_size, sets=self._states.sets)
        struct.decoder = decoder_struct(config.decoder, self._weights, config.attention_block_size)
        struct.decoder.intermediate = config.intermediate_size
        struct.decoder.layers = self._decoder_layers
        self._weights.put_ends(struct.decoder, weights, "embed_tokens.weight", "norm.weight")
        struct.sizes = SizesStruct(
            slots=config.max_memory_slots,
            first_slots=config.memory_slots,
            width=config.memory_width,
            span=config.span,
            heads=layout.heads,
            depth=layout.depth,
            chunk=config.test_time_chunk,
            eps=config.rms_norm_eps,
            clip=config.test_time_clip,
        )
        struct.layers = self._layers
        flags = [int(config.has_memory(i) and layout.state_size > 0) for i in range(config.num_hidden_layers)]
        self._flags = np.array(flags, np.int32)
        struct.has_memories = self._flags.ctypes.data
        return struct


def _fill_memories(layer: MemoryLayerStruct, packed: NativeWeights, config: LtmConfig, of: Tensors) -> None:
    layout = RowLayout(config)
    into_OD, bias_O = torch.zeros(layout.in_width, config.hidden_size), torch.zeros(layout.in_width)
    reads = []
    if layout.strips:
        _fill_bank(layer, packed, layout, {key.removeprefix("bank."): x for key, x in of.items()}, into_OD, bias_O)
        reads.append(_wide(of["bank.o_proj.weight"], layout.padded_width))
    if layout.heads:
        own = {key.removeprefix("test_time."): x for key, x in of.items()}
        _fill_test_time(layer, packed, layout, own, into_OD, bias_O)
        by_head = own["o_proj.weight"].unflatten(1, (layout.heads, -1))
        reads.append(_wide(by_head, padded(layout.head)).flatten(1))
    layer.into, layer.out = packed.packed(into_OD, bias_O), packed.packed(torch.cat(reads, 1), None)
    layer.norm = packed.floats(of["memory_layernorm.weight"])


def _fill_bank(
    layer: MemoryLayerStruct, packed: NativeWeights, layout: RowLayout, of: Tensors, into_OD: Tensor, bias_O: Tensor
) -> None:
    """Fill in the bank's part of a layer's structure, and of its first matrix and bias."""
    C, lanes = layout.padded_width, LANES * layout.strips
    for order, name in enumerate(("q_proj", "pool_proj", "value_proj", "channel_gate")):
        into_OD[order * C : order * C + layout.width] = of[f"{name}.weight"]
    into_OD[4 * C], into_OD[4 * C + 1] = of["write_gate.weight"][0], of["read_gate.weight"][0]
    bias_O[4 * C + 1] = of["read_gate.bias"][0]
    layer.q_norm, layer.k_norm = (packed.floats(_wide(of[f"{name}.weight"], C)) for name in ("q_norm", "k_norm"))
    queries_SC = torch.zeros(lanes, C)
    queries_SC[: len(of["slot_queries"]), : layout.width] = of["slot_queries"] / math.sqrt(layout.width)
    layer.queries = packed.floats(queries_SC.unflatten(0, (-1, LANES)).transpose(1, 2))
    layer.centres = packed.floats(_wide(of["slot_centres"], lanes))
    layer.sharpness = packed.floats(_wide(of["slot_sharpness"].float().exp(), lanes))
    layer.openness = packed.floats(_wide(of["slot_gates"], lanes))


def _fill_test_time(
    layer: MemoryLayerStruct, packed: NativeWeights, layout: RowLayout, of: Tensors, into_OD: Tensor, bias_O: Tensor
) -> None:
    """Fill in the test-time memory's part of a layer's structure, and of its first matrix and bias."""
    heads, c, rates = layout.heads, padded(layout.head), layout.rates
    for order, name in enumerate(("q_proj", "k_proj", "v_proj")):
        part_HcD = into_OD[layout.learns + order * heads * c :][: heads * c].unflatten(0, (heads, c))
        part_HcD[:, : layout.head] = of[f"{name}.weight"].unflatten(0, (heads, -1))
    into_OD[rates : rates + 3 * heads], bias_O[rates : rates + 3 * heads] = of["rates.weight"], of["rates.bias"]
    into_OD[rates + 3 * heads] = of["read_gate.weight"][0]
    bias_O[rates + 3 * heads] = of["read_gate.bias"][0]
    layer.first = packed.floats(_wide(of["weights"], c))
    layer.tt_norm = packed.floats(_wide(of["norm"], c)) if layout.depth == 2 else None


def _wide(x: Tensor, size: int) -> Tensor:
    """Return a tensor whose last dimension is padded with zeros."""
    return F.pad(x, (0, size - x.shape[-1]))
