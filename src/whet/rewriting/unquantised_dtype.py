"""What runs in which precision around quantised layers, and at the borders of the module.

REST is an option of every technique that quantises: what its other operators compute in.
"""

import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from whet.errors import OptionError
from whet.technique import Candidate

REST = ("bfloat16", "float32")


class Rest(nn.Module):
    """Calls a module, under autocast to bfloat16 or plainly; outputs keep the dtypes the model's users expect."""

    def __init__(self, module: nn.Module, rest: str, output_dtypes: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.module = module
        self.autocasts = rest == "bfloat16"
        self.output_dtypes = output_dtypes

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self.autocasts:
            with torch.autocast("cpu", torch.bfloat16):
                outputs = self.module(*tensors)
        else:
            outputs = self.module(*tensors)
        return tuple(y.to(dtype) for y, dtype in zip(outputs, self.output_dtypes, strict=True))


def around(module: nn.Module, rest: str, candidate: Candidate) -> Rest:
    """A quantised module with its other operators in `rest`. Raises OptionError for what is no such precision."""
    if rest not in REST:
        raise OptionError(f"rest must be {' or '.join(REST)}, not {rest!r}")
    if rest == "bfloat16":
        for part in module.modules():
            if isinstance(part, fx.GraphModule):
                _into_range(part)
    return Rest(module, rest, tuple(y.dtype for y in candidate.examined.outputs[0]))


def _into_range(graph_module: fx.GraphModule) -> None:
    """Numbers in a graph that bfloat16 can't hold, as a float32 minimum that fills a mask, become its own extremes."""
    limits = torch.finfo(torch.bfloat16)

    def clamp(argument: Any) -> Any:
        if isinstance(argument, float) and math.isfinite(argument):
            return min(max(argument, limits.min), limits.max)
        return argument

    for node in graph_module.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, clamp)
        node.kwargs = fx.node.map_aggregate(node.kwargs, clamp)
    graph_module.recompile()
