"""Compute linear layers that read the same input as one.

What            Sibling nn.Linear layers (query, key, value; gate and up of a gated MLP) become one layer with their
                concatenated weights, whose output is split.
When it helps   Few rows (small batch, short sequence): the input is read once, and one larger product replaces several.
When it hurts   Consumers that need contiguous tensors: each part is then copied out of the wide result.
Numerics        The same dot products: within 1e-5 relative in float32; one int8 scale per row stays one per row.
Composes        With every precision and backend; quantisers see fewer, larger layers.
Source          Megatron-LM and vLLM fuse these projections when they load a model; FasterTransformer before them.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn

from whet.core.workload import ExaminedWorkload
from whet.errors import TargetError
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.rewriting.graph import Traced, is_changed_in_place, rebuild, trace, trace_original, verify
from whet.techniques.technique import Applicability, Applies, Candidate, NoOptions, NotApplicable, Stage, Technique

_TOLERANCE = 1e-4
_LINEARS = frozenset({"Linear", "NonDynamicallyQuantizableLinear"})


def check(examined: ExaminedWorkload, machine: Machine, options: NoOptions) -> Applicability:
    try:
        groups = _find_groups(trace_original(examined))
    except TargetError as error:
        return NotApplicable(str(error))
    if not groups:
        return NotApplicable("no two linear layers read the same input")
    return Applies(f"{sum(map(len, groups))} linear layers become {len(groups)}")


def apply(candidate: Candidate, options: NoOptions) -> Candidate:
    """Return the candidate with its sibling linear layers fused, without the separate weights.

    Raises:
        TargetError: There are no linear layers to fuse, or the outputs would change.
    """
    traced = trace(candidate.module, candidate.examined)
    groups = _find_groups(traced)
    if not groups:
        raise TargetError("fuse_qkv finds no linear layers to fuse; leave it out of the recipe")
    for nodes in groups:
        _fuse(traced, nodes)
    module = Traced(rebuild(traced))
    verify("fuse_qkv", module, candidate.module, candidate.examined, _TOLERANCE)
    return candidate.with_module(module)


def _find_groups(traced: fx.GraphModule) -> list[list[fx.Node]]:
    """Return the calls of linear layers that read the same tensor, two or more to a group.

    Each layer is called once and shares its weight with no other.
    """
    calls = [node for node in traced.graph.nodes if _linear(traced, node) is not None]
    num_readers = Counter(id(_weight(traced, node)) for node in calls)
    groups: dict[tuple[Any, ...], list[fx.Node]] = defaultdict(list)
    for node in calls:
        (x,), weight = node.args, _weight(traced, node)
        if isinstance(x, fx.Node) and num_readers[id(weight)] == 1:
            groups[x, weight.shape[1], weight.dtype].append(node)
    return [
        nodes
        for (x, *_), nodes in groups.items()
        if len(nodes) > 1 and not any(is_changed_in_place(node) for node in (x, *nodes))
    ]


def _linear(traced: fx.GraphModule, node: fx.Node) -> nn.Linear | None:
    """Return the linear layer that a node calls, or None where it calls something else."""
    module = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
    return module if type(module) is nn.Linear and type(module.weight) is nn.Parameter else None


def _weight(traced: fx.GraphModule, node: fx.Node) -> Tensor:
    return traced.get_parameter(f"{node.target}.weight")


def _fuse(traced: fx.GraphModule, nodes: Sequence[fx.Node]) -> None:
    """Replace several calls by one linear layer and a split, at the place of the first call."""
    linears = [linear for node in nodes if (linear := _linear(traced, node)) is not None]
    path = _path([str(node.target) for node in nodes])
    traced.add_submodule(path, _concatenate(linears))
    sizes = [linear.out_features for linear in linears]
    graph = traced.graph
    with graph.inserting_before(nodes[0]):
        wide = graph.call_module(path, nodes[0].args)
        parts = graph.call_function(torch.ops.aten.split_with_sizes.default, (wide, sizes, -1))
        for i, node in enumerate(nodes):
            part = graph.call_function(getitem, (parts, i))
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part)
    for node in nodes:
        graph.erase_node(node)


def _path(paths: Sequence[str]) -> str:
    """Return the fused layer's path: "layer.query" and "layer.key" give "layer.query_key"."""
    owner = paths[0].rpartition(".")[0]
    name = "_".join(path.rpartition(".")[2] for path in paths)
    return f"{owner}.{name}" if owner else name


@torch.no_grad()
def _concatenate(linears: Sequence[nn.Linear]) -> nn.Linear:
    """Return one layer with all outputs in order. A missing bias counts as zero if another layer has one."""
    has_bias = any(linear.bias is not None for linear in linears)
    out_features = sum(linear.out_features for linear in linears)
    wide = nn.Linear(linears[0].in_features, out_features, bias=has_bias, device="meta")
    wide.weight = nn.Parameter(torch.cat([linear.weight for linear in linears]))
    if has_bias:
        biases = (m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in linears)
        wide.bias = nn.Parameter(torch.cat(list(biases)))
    return wide


TECHNIQUE = Technique(
    name="fuse_qkv",
    stage=Stage.STRUCTURE,
    order=30,
    card=__doc__,
    check=check,
    predict=lambda profile, limits, options: speedup_bound(
        profile, limits, dtype=profile.dtype, kinds=_LINEARS, removes_overhead=True
    ),
    apply=apply,
)
