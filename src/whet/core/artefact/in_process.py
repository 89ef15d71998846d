"""Compile a module with torch.compile in the process that runs it. This is the one runtime that cannot be saved.

torch.compile guards what it has compiled. Where Python asks for a tensor's value, it breaks the graph, runs that line
in Python, and compiles each branch when a call first takes it. So it works for models that torch.export refuses.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from whet.core.artefact.runtime import Manifest, Runtime
from whet.errors import ArtefactError, TargetError

_ADVICE = "it is compiled in the process that runs it, from the model's own code; use whet.apply(RECIPE, model, inputs)"


class InProcessRuntime(Runtime):
    """Run a compiled module. Its first calls compile; other branches and shapes compile when they first occur.

    Args:
        module: A module that takes flat tensors and returns a tuple of tensors. It must not change while it is used.
        is_dynamic: Whether sizes of its inputs vary. It is then compiled for any size at once.
    """

    NAME = "in-process"

    def __init__(self, module: nn.Module, *, is_dynamic: bool = False) -> None:
        self._compiled = torch.compile(module, dynamic=True if is_dynamic else None)
        self._graphs, self._breaks = _counts()

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return tuple(self._compiled(*tensors))

    @property
    def num_graphs(self) -> int:
        """Return how many graphs were compiled in this process since this runtime was made."""
        return _counts()[0] - self._graphs

    @property
    def num_graph_breaks(self) -> int:
        """Return how many places torch.compile has found since then in which the model's code leaves a graph."""
        return _counts()[1] - self._breaks

    def save(self, directory: Path, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TargetError: there is nothing that another process could load."""
        raise TargetError(f"a model compiled by torch.compile with graph breaks cannot be saved: {_ADVICE}")

    def write(self, directory: Path) -> NoReturn:
        self.save(directory)

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        raise ArtefactError(f"{directory} cannot hold such a model: {_ADVICE}")


def _counts() -> tuple[int, int]:
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
