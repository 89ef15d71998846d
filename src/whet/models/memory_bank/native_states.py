"""Keep the states of a decoder with long-term memory for whet's kernels, a row a sequence.

A row has the memories at the sequence's settled position; of drafts beyond it, it has what the memories take of their
tokens. A step that begins after some of these drafts takes them in again. Keys and values of the segment lie in blocks
of the row, which has room for a few segments in turn, since the tokens of a step may belong to several. Rows of
snapshots hold the memories and one segment, next to each other in memory.

Shape suffixes: K key-value heads, H head width, P tokens of the segment.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from whet.kernels.decoder.structs import Kv
from whet.kernels.decoder.structs import LayerStruct as DecoderLayerStruct
from whet.kernels.linear.packed import large_pages
from whet.kernels.memory_model.structs import MemoryLayerStruct
from whet.kernels.paged_attention.cache import Batch
from whet.models.decoder.native_layers import BLOCK_SIZE, cache_bytes, place_caches
from whet.models.memory_bank.attention import SegmentState
from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.native_layout import RowLayout
from whet.models.memory_bank.slots import adapted
from whet.models.memory_bank.state import LayerState, LtmState, check_state
from whet.models.row_places import RowPlaces
from whet.models.step import Allocation

_PART_TOKENS = 192  # of a step that go through a layer together; as in kernels/decoder/kernel.h


class NativeStates:
    def __init__(self, config: LtmConfig, kv: Kv) -> None:
        self._config, self._kv = config, kv
        self.layout = RowLayout(config)
        has_any = self.layout.state_size > 0
        self._remembering = [i for i in range(config.num_hidden_layers) if has_any and config.has_memory(i)]
        self.sets = -(-_PART_TOKENS // config.attention_block_size) + 1
        self._blocks = -(-config.attention_block_size // BLOCK_SIZE)
        of_segment = self._blocks * cache_bytes(config.decoder, kv) * config.num_hidden_layers
        self._snapshot = 4 * len(self._remembering) * self.layout.state_size + of_segment
        self.bytes_per_state = self._snapshot + (self.sets - 1) * of_segment
        self.bytes_per_draft = 4 * len(self._remembering) * self.layout.draft_size
        self.bytes_to_rewind = 4 * len(self._remembering) * self.layout.state_size  # the states beyond the settled ones

    def allocate(
        self, room: Allocation, layers: Sequence[MemoryLayerStruct], decoder_layers: Sequence[DecoderLayerStruct]
    ) -> None:
        """Allocate the rows, and write their addresses into the structures of the layers."""
        assert room.num_drafts <= _PART_TOKENS, "drafts would reach around to the segment that they may go back to"
        self.places, self._room = RowPlaces(room), room
        rows, size = room.num_states, self.layout.state_size
        beyond = rows * size if room.num_drafts else 0
        drafts = rows * room.num_drafts * self.layout.draft_size
        of_layer = rows * size + beyond + drafts
        self._memory = large_pages(4 * len(self._remembering) * of_layer)  # zeros, in pages that are used later
        floats = self._memory.view(torch.float32)
        self._states: dict[int, Tensor] = {}
        for order, index in enumerate(self._remembering):
            first = order * of_layer
            self._states[index] = floats[first : first + rows * size].view(rows, size)
            at = self._memory.data_ptr() + 4 * first
            layers[index].state = at
            if room.num_drafts:
                layers[index].beyond, layers[index].drafts = at + 4 * rows * size, at + 4 * (rows * size + beyond)
        num_blocks = rows * self.sets * self._blocks
        self._caches = place_caches(decoder_layers, num_blocks, self._config.decoder, self._kv)
        self._sizes = [part.numel() for part in self._parts(0, 0)] if rows else []  # of the parts of a snapshot
        self._snapshots = large_pages(room.num_snapshots * self._snapshot).view(room.num_snapshots, self._snapshot)

    def copy(self, source: int, target: int) -> None:
        """Copy the settled states of a row to another one. Either may be a snapshot.

        numpy copies on this thread: threads of torch would go on spinning, and slow down the next step.
        """
        position = int(self.places.settled[source])
        for one, other in zip(self._parts(source, position), self._parts(target, position), strict=True):
            np.copyto(other.numpy(), one.numpy())
        self.places.put(target, position)

    def read(self, row: int, num_tokens: int | None) -> LtmState:
        num_tokens = int(self.places.settled[row]) if num_tokens is None else num_tokens
        self.places.check(row, num_tokens)
        layers = []
        for index, cache in enumerate(self._caches):
            k_PKH, v_PKH = cache.read(self._blocks_of(row, num_tokens))
            num_past = num_tokens % self._config.attention_block_size
            segment = SegmentState(*(x[:num_past].transpose(0, 1)[None].clone() for x in (k_PKH, v_PKH)))
            layer = LayerState(segment)
            if index in self._states:
                memories = self._states[index][row]
                layer.bank = self.layout.read_bank(memories) if self.layout.strips else None
                layer.test_time = self.layout.read_heads(memories) if self.layout.heads else None
            layers.append(layer)
        return LtmState(layers, num_tokens)

    def write(self, row: int, state: LtmState) -> None:
        """Put the state of one sequence into a row. What follows from the contents of banks is left to the kernels."""
        check_state(state, self._config, 1)
        num_past = state.num_tokens % self._config.attention_block_size
        blocks = self._blocks_of(row, state.num_tokens).int()
        counts = torch.tensor([num_past], dtype=torch.int32)
        starts = torch.tensor([0, num_past], dtype=torch.int32)
        batch = Batch(torch.arange(num_past, dtype=torch.int32), starts, counts, blocks[None])
        for index, (cache, layer) in enumerate(zip(self._caches, state.layers, strict=True)):
            if num_past:
                keys, values = layer.segment.keys_BKPH[0], layer.segment.values_BKPH[0]
                cache.write(batch, keys.transpose(0, 1), values.transpose(0, 1))
            if layer.bank is not None:
                self.layout.write_bank(self._states[index][row], layer.bank)
            if layer.test_time is not None:
                self.layout.write_heads(self._states[index][row], layer.test_time)
        self.places.put(row, state.num_tokens)

    def memories(self, row: int) -> list[Tensor]:
        """Return the memories of a row in the layers that have any: views, as the layout has them."""
        return [states[row] for states in self._states.values()]

    def adapt(self, row: int) -> None:
        """Run a round of adaptive compression. What follows from the contents of banks is left to the kernels."""
        for memories in self.memories(row):
            self.layout.write_bank(memories, adapted(self.layout.read_bank(memories), self._config))

    def _blocks_of(self, row: int, position: int) -> Tensor:
        """Return the blocks of the segment in which a position lies."""
        turn = position // self._config.attention_block_size % self.sets
        return (row * self.sets + turn) * self._blocks + torch.arange(self._blocks)

    def _parts(self, row: int, position: int) -> list[Tensor]:
        """Return the settled states of a row, as views of bytes."""
        snapshot = row - self._room.num_states
        if snapshot < 0:
            first = int(self._blocks_of(row, position)[0])
            of_cache = [
                part[first : first + self._blocks]
                for cache in self._caches
                for part in (cache.keys, cache.values, cache.key_scales, cache.value_scales)
                if part is not None
            ]
            return [part.flatten().view(torch.uint8) for part in [*self.memories(row), *of_cache]]
        return list(self._snapshots[snapshot].split(self._sizes))
