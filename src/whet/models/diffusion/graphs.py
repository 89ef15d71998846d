"""Record a model's calls as CUDA graphs and replay them: one launch instead of one for each kernel.

A graph reads and writes fixed memory. So each call copies its inputs into buffers of the graph's own, replays it, and
returns the graph's own output, which is valid until the next replay of any graph: all graphs share their memory, and
the pipeline has read an output before it calls a model again. Whatever may change between two calls, a prompt too, must
come as an input.

There is a graph for each set of input shapes. A rolling batch that fills or drains has fewer rows, which are other
shapes. They are not padded to the full batch: the calls that fill the batch before the first frame record them all, a
level of fewer steps finds its graph there, no work is done for rows that nobody asked for, and no row that is made up
can put infinities into a mean over the batch.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.errors import type_name
from whet.models.diffusion.frame_diffusion import Call

MOST_GRAPHS = 16
_WARM_UP_CALLS = 3  # libraries choose their kernels and allocate in the first calls, which a graph must not record


class Graph(Protocol):
    def replay(self) -> None:
        """Run the recorded kernels on the memory that they were recorded with."""


class Cuda(Protocol):
    """Describe what recording needs of CUDA, so that its logic can be tested without a GPU."""

    def beside(self) -> AbstractContextManager[None]:
        """Run work on a stream beside the current one, after what came before it and before what comes after it."""

    def graph(self) -> Graph:
        """Return an empty graph."""

    def recording(self, graph: Any) -> AbstractContextManager[None]:
        """Record work into a graph instead of running it."""

    def wait(self) -> None:
        """Wait until the device has done all of its work."""


class TorchCuda:
    """Record with PyTorch on one CUDA device; on the current one, where the device has no index."""

    def __init__(self, device: torch.device) -> None:
        self._device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._stream = torch.cuda.Stream(self._device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    @contextmanager
    def beside(self) -> Iterator[None]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def graph(self) -> torch.cuda.CUDAGraph:
        return torch.cuda.CUDAGraph()

    @contextmanager
    def recording(self, graph: Any) -> Iterator[None]:
        """Record work into a graph. Other threads may use the device meanwhile."""
        generator = torch.cuda.default_generators[self._device.index]
        state = generator.clone_state()
        try:
            with (
                torch.cuda.stream(torch.cuda.current_stream(self._device)),  # comes back, also where recording fails
                torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                yield
        except BaseException:
            # PyTorch ends a recording that CUDA refuses halfway. Without this, random numbers and the next graphs fail.
            generator.graphsafe_set_state(state)
            with suppress(RuntimeError):  # it has ended the allocations already
                torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
            self._pool = torch.cuda.graph_pool_handle()
            raise

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)


@dataclass
class _Recorded:
    """Hold a graph with the memory that it reads and writes."""

    graph: Graph
    inputs: Mapping[str | int, Tensor]
    output: Tensor


_Key = tuple[str, tuple[tuple[str | int, torch.Size, torch.dtype], ...]]


class Graphs:
    """Record the calls of several functions, and replay them. It belongs to one thread at a time.

    Args:
        most: How many graphs are kept. The one that was not used for longest makes room.
        notes: A list that gets what could not be recorded and why, in sentences. Such a function is called as it is.
    """

    def __init__(self, cuda: Cuda, most: int = MOST_GRAPHS, notes: list[str] | None = None) -> None:
        self._cuda, self._most = cuda, most
        self._recorded: OrderedDict[_Key, _Recorded] = OrderedDict()
        self._refused: set[str] = set()
        self.notes: list[str] = [] if notes is None else notes

    def __len__(self) -> int:
        return len(self._recorded)

    def wrapped(self, name: str, function: Call) -> Call:
        """Return a function that does the same by replays. What it returns is valid until the next replay of any graph.

        Args:
            name: The function's name in notes. No other function has it.
            function: Takes tensors on the device and returns one. It computes from them, and from weights that stay
                where they are, by kernels alone: it must not decide anything by a tensor's values.
        """

        def call(*args: Tensor, **named: Tensor) -> Tensor:
            if name in self._refused:
                return function(*args, **named)
            with torch.inference_mode():  # the buffers are written in this mode alone
                inputs: dict[str | int, Tensor] = dict(enumerate(args))
                inputs.update(named.items())
                recorded = self._found(name, function, inputs)
                if recorded is not None:
                    return _replayed(recorded, inputs)
            return function(*args, **named)

        return call

    def _found(self, name: str, function: Call, inputs: Mapping[str | int, Tensor]) -> _Recorded | None:
        """Return the graph for inputs of these shapes, which is recorded if it is new; None where that fails."""
        key = (name, tuple((place, x.shape, x.dtype) for place, x in inputs.items()))
        if key in self._recorded:
            self._recorded.move_to_end(key)
            return self._recorded[key]
        while len(self._recorded) >= self._most:
            self._cuda.wait()  # the graph may still run
            self._recorded.popitem(last=False)
        buffers = {place: torch.empty_like(x).copy_(x) for place, x in inputs.items()}
        args = [x for place, x in buffers.items() if isinstance(place, int)]
        named = {place: x for place, x in buffers.items() if isinstance(place, str)}
        with self._cuda.beside():
            for _ in range(_WARM_UP_CALLS):
                function(*args, **named)
        graph = self._cuda.graph()
        try:
            with self._cuda.recording(graph):
                output = function(*args, **named)
        except RuntimeError as error:  # so do errors of CUDA come, and values that are read while a graph is recorded
            self._refused.add(name)
            self.notes.append(f"the {name} runs without CUDA graphs, as recording failed: {_reason(error)}")
            return None
        recorded = self._recorded[key] = _Recorded(graph, buffers, output)
        return recorded


def _replayed(recorded: _Recorded, inputs: Mapping[str | int, Tensor]) -> Tensor:
    for place, x in inputs.items():
        recorded.inputs[place].copy_(x)
    recorded.graph.replay()
    return recorded.output


def _reason(error: RuntimeError) -> str:
    """Return the first line of the first error. CUDA raises another one where a broken recording ends."""
    first: BaseException = error
    while isinstance(first.__context__, RuntimeError):
        first = first.__context__
    line, _, _ = str(first).strip().partition("\n")
    return f"{type_name(first)}: {line}"
