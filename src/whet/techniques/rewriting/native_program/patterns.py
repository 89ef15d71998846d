"""Find what several nodes of a graph do together, before they are lowered one by one."""

from collections import defaultdict
from typing import Any

import torch
from torch import fx, nn

from whet.techniques.rewriting.graph import operator, parameter, value

ACTIVATIONS = frozenset({"relu", "gelu", "silu", "tanh", "sigmoid"})


class Patterns:
    """Hold the patterns of a graph.

    Attributes:
        groups: Linear layers with the same input, by each of them: they become one matrix.
        sums: The embeddings that each sum adds up.
        quick_gelus: The x of each x sigmoid(1.702 x).
        rms_norms: The x, the weight and eps of each x rsqrt(mean(x^2) + eps) weight.
        gated: The activation's node, the gate's and the other linear layer of each gated product.
        absorbed: Nodes that are lowered with another one.
    """

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self._graph_module = graph_module
        self.sums: dict[fx.Node, list[fx.Node]] = {}
        self.gated: dict[fx.Node, tuple[fx.Node, fx.Node, fx.Node]] = {}
        self.quick_gelus: dict[fx.Node, fx.Node] = {}
        self.rms_norms: dict[fx.Node, tuple[fx.Node, fx.Node, float]] = {}
        self.groups: dict[fx.Node, list[fx.Node]] = {}
        self.absorbed: set[fx.Node] = set()
        for node in reversed(graph_module.graph.nodes):
            if operator(node) == "add" and node not in self.absorbed:
                self._find_sum(node)
            elif operator(node) == "mul":
                self._find_gated(node)
                self._find_quick_gelu(node)
                self._find_rms_norm(node)
        self._find_groups()

    def _find_sum(self, node: fx.Node) -> None:
        inner: list[fx.Node] = []
        found = self._terms(node, inner)
        if found is not None and len(found) > 1:
            self.sums[node] = found
            self.absorbed.update(inner, found)

    def _terms(self, node: fx.Node, inner: list[fx.Node]) -> list[fx.Node] | None:
        """Return the embeddings that a sum adds up, or None where it adds something else too."""
        if node.kwargs:
            return None
        found = []
        for arg in node.args:
            if not isinstance(arg, fx.Node) or len(arg.users) != 1:
                return None
            if operator(arg) == "embedding" and parameter(self._graph_module, arg.args[0]) is not None:
                found.append(arg)
            elif operator(arg) == "add" and (terms := self._terms(arg, inner)) is not None:
                inner.append(arg)
                found += terms
            else:
                return None
        return found

    def _find_gated(self, node: fx.Node) -> None:
        for activation, other in (node.args, reversed(node.args)):
            if not isinstance(activation, fx.Node) or operator(activation) not in ACTIVATIONS:
                continue
            gate = activation.args[0]
            if not (self._is_linear(gate) and self._is_linear(other) and gate is not other):
                continue
            assert isinstance(gate, fx.Node) and isinstance(other, fx.Node)
            alone = all(len(one.users) == 1 for one in (activation, gate, other))
            a, b = self._layer(gate), self._layer(other)
            if alone and gate.args[0] is other.args[0] and a.weight.shape == b.weight.shape:
                self.gated[node] = activation, gate, other
                self.absorbed.update((activation, gate, other))
                return

    def _find_quick_gelu(self, node: fx.Node) -> None:
        for x, sigmoid in (node.args, reversed(node.args)):
            if not isinstance(sigmoid, fx.Node) or operator(sigmoid) != "sigmoid" or len(sigmoid.users) > 1:
                continue
            product = sigmoid.args[0]
            if not isinstance(product, fx.Node) or not isinstance(x, fx.Node) or operator(product) != "mul":
                continue
            if len(product.users) == 1 and product.args == (x, 1.702):
                self.quick_gelus[node] = x
                self.absorbed.update((sigmoid, product))
                return

    def _find_rms_norm(self, node: fx.Node) -> None:
        for weight, scaled in (node.args, reversed(node.args)):
            held = parameter(self._graph_module, weight)
            if held is None or held.dim() != 1 or held.dtype is not torch.float32 or not isinstance(weight, fx.Node):
                continue
            product = _uncast(scaled)
            for x, factor in (product.args, reversed(product.args)) if operator(product) == "mul" else ():
                inner = _root_mean_square(_uncast(x), factor)
                whole = value(x)
                if inner is None or whole is None or whole.shape[-1] != len(held):
                    continue
                nodes, eps = inner
                nodes += dict.fromkeys(one for one in (product, scaled) if isinstance(one, fx.Node))
                if all(len(one.users) == 1 for one in nodes) and isinstance(x, fx.Node):
                    self.rms_norms[node] = _uncast(x), weight, eps
                    self.absorbed.update(nodes)
                    return

    def _find_groups(self) -> None:
        by_input: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in self._graph_module.graph.nodes:
            if self._is_linear(node) and node not in self.absorbed and not _feeds_activation(node):
                by_input[node.args[0]].append(node)
        for nodes in by_input.values():
            for node in nodes:
                self.groups[node] = nodes

    def _is_linear(self, node: object) -> bool:
        if not isinstance(node, fx.Node) or node.op != "call_module":
            return False
        layer = self._layer(node)
        return isinstance(layer, nn.Linear) and layer.weight.dtype is torch.float32 and value(node) is not None

    def _layer(self, node: fx.Node) -> nn.Linear:
        return self._graph_module.get_submodule(str(node.target))  # type: ignore[return-value]


def _uncast(node: Any) -> Any:
    """Return what a conversion hands on without changing it."""
    found, given = value(node), value(node.args[0]) if operator(node) in ("to", "_to_copy") else None
    return node.args[0] if found is not None and given is not None and given.dtype is found.dtype else node


def _root_mean_square(x: Any, node: Any) -> tuple[list[fx.Node], float] | None:
    """Return the nodes and eps where a node is rsqrt(mean(x^2) + eps) over the last dimension; None elsewhere."""
    if operator(node) != "rsqrt" or operator(total := node.args[0]) != "add" or total.kwargs:
        return None
    mean, eps = total.args[:2]
    if operator(mean) != "mean" or mean.kwargs or len(mean.args) != 3 or not isinstance(eps, int | float):
        return None
    square, dims, keeps = mean.args
    if operator(square) != "pow" or not keeps or list(dims) not in ([-1], [value(mean).dim() - 1]):  # type: ignore[union-attr]
        return None
    if square.args[1] != 2 or _uncast(square.args[0]) is not x:
        return None
    return [node, total, mean, square], float(eps)


def _feeds_activation(node: fx.Node) -> bool:
    """Return whether a layer alone feeds an activation, which can then be computed with it."""
    return len(node.users) == 1 and operator(next(iter(node.users))) in ACTIVATIONS
