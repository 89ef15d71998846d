"""Lower a whole graph to a program: node by node, then joined, without what nothing needs."""

import warnings

import torch
from torch import fx
from torch._ops import OpOverload

from whet.techniques.rewriting.graph import cleaned
from whet.techniques.rewriting.native_program.builder import Builder
from whet.techniques.rewriting.native_program.fusion import fused
from whet.techniques.rewriting.native_program.lowering import Lowering
from whet.techniques.rewriting.native_program.operators import OPERATORS
from whet.techniques.rewriting.native_program.unused import without_unused


def functional(exported: torch.export.ExportedProgram) -> fx.GraphModule:
    """Return an exported program as a cleaned graph in which no operator writes into its arguments."""
    targets = [node.target for node in exported.graph.nodes]
    if any(isinstance(target, OpOverload) and target._schema.is_mutable for target in targets):
        with warnings.catch_warnings():  # torch warns of its own copies
            warnings.simplefilter("ignore", FutureWarning)
            exported = exported.run_decompositions({})  # without a table, most operators stay as they are but for that
    return cleaned(exported)


def lower(graph_module: fx.GraphModule) -> Builder:
    """Return the program of a graph that `functional` gave, with its weights in float32.

    Raises:
        TargetError: The graph has an operator that the kernels lack; the message names it.
    """
    return without_unused(fused(Lowering(graph_module, OPERATORS).run()))
