"""Keep the states of a selective state-space model for whet's kernels, a row a sequence.

A row holds the states at the sequence's settled position. Of the drafts beyond it, it holds what the scan and the
convolution read of them. A step that begins after some of these drafts takes them into the states again, without
matrix products, and then its own tokens. So a refused draft leaves nothing behind, bit for bit, and a draft takes a
small part of the memory of a state. Source of the idea: https://github.com/vllm-project/vllm/pull/47576.

Rows of snapshots hold states alone, next to each other in memory.

Shape suffixes: N states, C convolved channels, K taps.
"""

import ctypes
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.kernels.linear.packed import LANES, large_pages
from whet.models.row_places import RowPlaces
from whet.models.selective.config import SelectiveConfig
from whet.models.selective.state import LayerState, SelectiveState, check_state
from whet.models.step import Allocation, Ints, StepBatch

Floats = NDArray[np.float32]

_ALIGNED = 16  # floats of a cache line


class NativeStates:
    """Hold the rows of all layers, and the place of each row in its sequence.

    Args:
        num_layers: How many layers have states. By default, all layers of the config.
        has_scan: Whether the layers have a scan; else they only convolve.
    """

    def __init__(self, config: SelectiveConfig, num_layers: int | None = None, *, has_scan: bool = True) -> None:
        self._config = config
        self._num_layers = config.num_hidden_layers if num_layers is None else num_layers
        heads, width = (config.num_heads, config.head_dim) if config.has_heads else (1, config.intermediate_size)
        if not has_scan:
            heads = width = 0
        self._heads, self._width = heads, width
        self._strips = heads * -(-width // LANES)
        self._scan = self._strips * config.state_size * LANES  # floats
        self._conv = (config.conv_kernel - 1) * config.conv_size
        self._delta, self._b = (heads, 0) if config.has_heads else (width, config.state_size if has_scan else 0)
        self.bytes_per_state = 4 * self._num_layers * (self._scan + self._conv)
        self.bytes_per_draft = 4 * self._num_layers * (config.conv_size + self._delta + self._b)
        self._room = Allocation()
        self._places = RowPlaces(self._room)
        self._scans: list[Tensor] = []  # of each layer, [rows, strips, N, lanes]
        self._convs: list[Tensor] = []  # of each layer, [rows, K - 1, C]
        self._snapshots = torch.empty(0, 0)

    def allocate(self, room: Allocation, layers: Iterable[ctypes.Structure]) -> None:
        """Allocate the rows, and write their addresses into the structures of the layers."""
        config, rows, drafts = self._config, room.num_states, room.num_drafts
        kept = config.conv_kernel - 1
        sizes = [
            self._scan,
            self._conv + drafts * config.conv_size,
            drafts * self._delta,
            drafts * self._b,
        ]
        starts = np.cumsum([0] + [-(-rows * size // _ALIGNED) * _ALIGNED for size in sizes]).tolist()
        # Zeros, in pages that take memory once they are used.
        self._memory = large_pages(4 * self._num_layers * starts[-1])
        copied = room.num_snapshots, self.bytes_per_state // 4
        self._snapshots = (
            large_pages(4 * copied[0] * copied[1]).view(torch.float32)[: copied[0] * copied[1]].view(copied)
        )
        floats = self._memory.view(torch.float32)
        self._scans, self._convs = [], []
        for index, layer in enumerate(layers):
            first = index * starts[-1]
            names = ("scan_state", "conv_state", "draft_delta", "draft_b")
            for name, start in zip(names, starts, strict=False):
                setattr(layer, name, self._memory.data_ptr() + 4 * (first + start))
            scan, conv = (floats[first + starts[i] :][: rows * sizes[i]] for i in range(2))
            self._scans.append(scan.view(rows, self._strips, config.state_size, LANES))
            self._convs.append(conv.view(rows, kept + drafts, config.conv_size)[:, :kept])
        self._room, self._places = room, RowPlaces(room)

    def segments(self, batch: StepBatch) -> Ints:
        """Return the segments of a step for the kernels, int32 [S, 7], and note what rows hold after the step.

        Raises:
            ValueError: A sequence begins where its row holds no state, or has too many drafts.
        """
        reads = self._places.take(batch)
        begins, none = reads.position == 0, np.zeros_like(reads.row)
        columns = (reads.row, reads.first, reads.num_tokens, begins, reads.replayed, reads.settles, none)
        return np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.int32)

    def copy(self, source: int, target: int) -> None:
        """Copy the settled states of a row to another one. Either may be a snapshot.

        numpy copies on this thread: threads of torch would go on spinning, and slow down the next step.
        """
        for one, other in zip(self._parts(source), self._parts(target), strict=True):
            np.copyto(other, one)
        self._places.put(target, int(self._places.settled[source]))

    def read(self, row: int, num_tokens: int) -> SelectiveState:
        self._places.check(row, num_tokens)
        layers = []
        for in_lanes, conv in zip(self._scans, self._convs, strict=True):
            strips = in_lanes[row].unflatten(0, (self._heads, -1)).transpose(2, 3).flatten(1, 2)[:, : self._width]
            scan = strips if self._config.has_heads else strips[0]
            layers.append(LayerState(conv[row][None].clone(), scan[None].clone()))
        return SelectiveState(layers, num_tokens)

    def write(self, row: int, state: SelectiveState) -> None:
        check_state(state, self._config, 1)
        for in_lanes, conv, layer in zip(self._scans, self._convs, state.layers, strict=True):
            conv[row] = layer.conv_BSC[0]
            scan = layer.scan[0] if self._config.has_heads else layer.scan
            padded = torch.zeros(scan.shape[0], -(-scan.shape[1] // LANES) * LANES, scan.shape[2])
            padded[:, : scan.shape[1]] = scan
            in_lanes[row] = padded.unflatten(1, (-1, LANES)).transpose(2, 3).flatten(0, 1)
        self._places.put(row, state.num_tokens)

    def _parts(self, row: int) -> list[Floats]:
        """Return the settled states of a row, layer by layer: views."""
        snapshot = row - self._room.num_states
        if snapshot < 0:
            pairs = zip(self._scans, self._convs, strict=True)
            return [view[row].view(-1).numpy() for pair in pairs for view in pair]
        sizes = [self._scan, self._conv] * self._num_layers
        return [part.numpy() for part in self._snapshots[snapshot].split(sizes)]
