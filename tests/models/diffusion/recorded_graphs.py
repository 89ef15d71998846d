"""Stand in for CUDA graphs on the CPU: record each operator with its tensors, and run them again on the same memory."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FakeGraph:
    """Hold operators. As with a CUDA graph, a replay runs no Python of the model, and reads and writes fixed memory."""

    def __init__(self):
        self.recorded, self.num_replays = [], 0

    def replay(self):
        self.num_replays += 1
        for function, args, named, outputs in self.recorded:
            for old, new in zip(outputs, _tensors(function(*args, **named)), strict=True):
                if old.data_ptr() != new.data_ptr():  # views and operators in place have written where they should
                    old.copy_(new)


class _Recording(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default):
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines of CUDA")
        result = function(*args, **(kwargs or {}))
        self._graph.recorded.append((function, args, kwargs or {}, _tensors(result)))
        return result


class FakeCuda:
    """Record with `FakeGraph`. What is recorded is not run: its output is NaN until the first replay."""

    def __init__(self):
        self.graphs, self.num_beside, self.num_waits = [], 0, 0

    @contextmanager
    def beside(self):
        self.num_beside += 1
        yield

    def graph(self):
        self.graphs.append(FakeGraph())
        return self.graphs[-1]

    @contextmanager
    def recording(self, graph):
        try:
            with _Recording(graph):
                yield
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904 - as PyTorch does
        for _, args, named, outputs in graph.recorded:
            inputs = {x.untyped_storage().data_ptr() for x in _tensors((args, named))}
            for output in outputs:
                if output.untyped_storage().data_ptr() not in inputs and output.is_floating_point():
                    output.fill_(torch.nan)

    def wait(self):
        self.num_waits += 1


def _tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
