"""Choose the precision of the operators around quantised layers, and of the module's inputs and outputs.

REST is an option of every technique that quantises: the type that its other operators compute in.
"""

import math
from typing import Any

import torch
from torch import fx, nn

from whet.errors import OptionError
from whet.techniques.rewriting.precision_wrapper import PrecisionWrapper
from whet.techniques.technique import Candidate

REST = ("bfloat16", "float32")


def with_rest(module: nn.Module, rest: str, candidate: Candidate) -> PrecisionWrapper:
    """Return a quantised module with its other operators in `rest`.

    Raises:
        OptionError: `rest` is no such precision.
    """
    if rest not in REST:
        raise OptionError(f"rest must be {' or '.join(REST)}, not {rest!r}")
    if rest == "bfloat16":
        for part in module.modules():
            if isinstance(part, fx.GraphModule):
                _into_range(part)
    autocast = "cpu" if rest == "bfloat16" else ""
    return PrecisionWrapper(module, candidate.examined.outputs[0], autocast=autocast)


def _into_range(graph_module: fx.GraphModule) -> None:
    """Clamp numbers in a graph that bfloat16 cannot hold, as a float32 minimum that fills a mask, to its range."""
    limits = torch.finfo(torch.bfloat16)

    def clamp(argument: Any) -> Any:
        if isinstance(argument, float) and math.isfinite(argument):
            return min(max(argument, limits.min), limits.max)
        return argument

    for node in graph_module.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, clamp)
        node.kwargs = fx.node.map_aggregate(node.kwargs, clamp)
    graph_module.recompile()
