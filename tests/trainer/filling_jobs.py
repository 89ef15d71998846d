"""What processes do in the tests of models that get their weights as they are divided."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whet.core.workload.blocks import blocks_of
from whet.parallel.clipping import local_of
from whet.parallel.division import division_of
from whet.parallel.pieces import whole_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.ranks import Ranks
from whet.trainer.model import TrainedModel, new_model, open_model

SEED = 5


class Live(TorchDispatchMode):
    """Note the most bytes of storages that were made in the block and lived at once.

    Attributes:
        most: These bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._living: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, Tensor) and type(x) is Tensor and not x.is_meta:
                storage = x.untyped_storage()
                self._living[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._living = {key: one for key, one in self._living.items() if not one[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._living.values()))
        return found


def opened(source: str | dict[str, Any], *, in_parts: bool) -> TrainedModel:
    """Return the model of a directory, or a new one of a config."""
    if isinstance(source, str):
        return open_model(Path(source), SEED, in_parts=in_parts)
    return new_model(source, 50, SEED, in_parts=in_parts)


def filled(ranks: Ranks, source: str | dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """Divide a model that gets its weights a unit at a time, and return what that took, and where they differ.

    Returns:
        The most bytes that lived at once ("most"), those of this process's part, of all weights and of the largest
        unit, and the names of the weights that are not bit for bit those of one process.
    """
    division = division_of(ParallelPlan(**plan), ranks, torch.device("cpu"))
    model = opened(source, in_parts=division.divides_units)
    assert model.fill is not None
    assert all(p.is_meta for p in model.module.parameters())
    units = [sum(p.nbytes for p in block.parameters()) for block in blocks_of(model.module)]
    whole = sum(p.nbytes for p in model.module.parameters())
    units.append(whole - sum(units))
    with Live() as live:
        division.share(model.module, fill=model.fill)
    known = opened(source, in_parts=False).module
    mine, theirs = model.module.state_dict(), known.state_dict()
    assert mine.keys() == theirs.keys()
    trained = {name for name, p in known.named_parameters() if p.requires_grad}
    assert {name for name, p in model.module.named_parameters() if p.requires_grad} == trained
    assert model.module.training == known.training
    return {
        "most": live.most,
        "part": sum(local_of(p).nbytes for p in model.module.parameters()),
        "whole": whole,
        "unit": max(units),
        "differ": [name for name in theirs if not torch.equal(whole_of(mine[name]), theirs[name])],
        "buffers": all(torch.equal(a, b) for a, b in zip(model.module.buffers(), known.buffers(), strict=True)),
    }
