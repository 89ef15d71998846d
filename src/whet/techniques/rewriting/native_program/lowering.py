"""Lower a cleaned graph to a program, node by node. What becomes of each operator is given."""

import operator as python
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload

from whet.core.artefact.native.program import CopyStep, Result
from whet.errors import TargetError
from whet.techniques.rewriting.graph import operator, parameter, value
from whet.techniques.rewriting.native_program.builder import Builder
from whet.techniques.rewriting.native_program.patterns import Patterns
from whet.techniques.rewriting.native_program.strided import Strided
from whet.techniques.rewriting.native_program.symbolic import Size, product, same, shape_of, size_of
from whet.techniques.rewriting.native_program.values import (
    Called,
    Fixed,
    Input,
    Value,
    called,
    folded,
    is_constant,
    refuse,
    stays_in_torch,
)

Handler = Callable[["Lowering", fx.Node], Value]

_CHECKS = ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "_functional_assert")
_SPREADING = ("expand", "unsqueeze")  # done by strides where steps read what torch made: fewer numbers are copied


class Lowering:
    """Go through a graph in order, and keep what each node stands for."""

    def __init__(self, graph_module: fx.GraphModule, operators: Mapping[str, Handler]) -> None:
        self.graph_module = graph_module
        self._operators = operators
        self.builder = Builder()
        self.patterns = Patterns(graph_module)
        self.env: dict[fx.Node, Value] = {}

    def run(self) -> Builder:
        num_inputs = 0
        for node in self.graph_module.graph.nodes:
            if node.op == "placeholder":
                self._read_input(node, num_inputs)
                num_inputs += 1
            elif node.op == "get_attr":
                tensor = parameter(self.graph_module, node)
                if tensor is not None:
                    self.env[node] = Fixed(tensor.detach(), str(node.target))
            elif node.op == "call_module":
                self._linear_module(node)
            elif node.op == "output":
                self._give(node.args[0])
            elif not _is_size(node):
                self._call(node)
        self.builder.finish_numbers()
        return self.builder

    def _read_input(self, node: fx.Node, index: int) -> None:
        tensor = value(node)
        if tensor is None:
            raise TargetError(f"whet's native kernels take tensors only, and input {index} is none")
        if tensor.is_complex() or tensor.dtype in (torch.float64, torch.float16, torch.bfloat16):
            raise TargetError(
                f"whet's native kernels compute models in float32, and input {index} is {tensor.dtype}; leave native "
                "out of the recipe"
            )
        for dim, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                self.builder.free.setdefault(str(size.node.expr), (index, dim))
        self.env[node] = Input(index)

    def _call(self, node: fx.Node) -> None:
        if operator(node).startswith(_CHECKS) or node in self.patterns.absorbed:
            return
        if node.target is python.getitem:
            source, item = node.args
            self.env[node] = self.env[source][item]  # type: ignore[index]
        elif not isinstance(node.target, OpOverload) or node.target._schema.is_mutable:
            raise refuse(node)
        elif is_constant(node, self.env) and not _has_sizes(node):
            self.env[node] = folded(node, self.env)
        elif stays_in_torch(node, self.env):
            self.env[node] = called(node, self.env, self.builder)
        else:
            lowered = self._operators.get(operator(node))
            if lowered is None:
                raise refuse(node)
            self._check_dtypes(node)
            self.env[node] = lowered(self, node)

    def _check_dtypes(self, node: fx.Node) -> None:
        tensor = value(node)
        if tensor is not None and tensor.dtype is not torch.float32:
            raise refuse(node, f"in {str(tensor.dtype).removeprefix('torch.')}")

    # what handlers of operators ask for

    def shape(self, node: fx.Node) -> tuple[Size, ...]:
        tensor = value(node)
        if tensor is None:
            raise refuse(node)
        return shape_of(tensor)

    def tensor(self, node: Any) -> Strided:
        """Return where the numbers of a node lie."""
        found = self.env[node]
        if isinstance(found, Strided):
            return found
        tensor = value(node) if not isinstance(found, Fixed) else found.tensor
        assert tensor is not None
        if isinstance(found, Fixed):
            tensor = tensor if tensor.dtype in (torch.float32, torch.bool, torch.int64) else tensor.float()
            return self.builder.constant(tensor, found.name)
        if isinstance(found, Called) and operator(node) in _SPREADING and node.args[0] in self.env:
            inner = self.tensor(node.args[0])
            return inner.expanded(self.shape(node)) if operator(node) == "expand" else inner.unsqueezed(node.args[1])
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in ("float32", "bool", "int64"):
            raise refuse(node, f"in {dtype}")
        if isinstance(found, Input):
            return self.builder.input(found.index, dtype, shape_of(tensor))
        assert isinstance(found, Called), node
        if found.item is not None:
            raise refuse(node, "as one of several results")
        return self.builder.value(found.index, dtype, shape_of(tensor))

    def rows(self, x: Strided) -> Strided:
        """Return a tensor [..., K] as rows [R, K] whose numbers lie side by side, copied where it has to be."""
        if not same(x.shape[-1], 1) and not same(x.strides[-1], 1):
            x = self.copied(x)
        found = x.reshaped((product(x.shape[:-1]), x.shape[-1]))
        if found is None:
            found = self.copied(x).reshaped((product(x.shape[:-1]), x.shape[-1]))
            assert found is not None
        return found

    def copied(self, x: Strided) -> Strided:
        out = self.builder.room(x.shape)
        self.builder.steps.append(CopyStep(x, out))
        return out

    def reshaped(self, x: Strided, shape: Sequence[Size]) -> Strided:
        """Return a tensor in another shape, copied where it has to be."""
        found = x.reshaped(shape)
        if found is None:
            found = self.copied(x).reshaped(shape)
            assert found is not None
        return found

    def sizes(self, arg: Any) -> Any:
        """Return an argument of an operator with sizes for the nodes in it that stand for sizes."""
        if isinstance(arg, list | tuple):
            return [self.sizes(item) for item in arg]
        return size_of(arg.meta["val"]) if isinstance(arg, fx.Node) else arg

    def fixed(self, node: Any) -> Tensor | None:
        """Return the constant that a node stands for, or None."""
        found = self.env.get(node)
        return found.tensor if isinstance(found, Fixed) else None

    def _linear_module(self, node: fx.Node) -> None:
        if node in self.env or node in self.patterns.absorbed:
            return
        group = self.patterns.groups.get(node, [node])
        layers = [self._layer(one) for one in group]
        if layers[0].weight.dtype is not torch.float32:
            raise refuse(node, f"in {str(layers[0].weight.dtype).removeprefix('torch.')}")
        weight, bias, name = joined([str(one.target) for one in group], layers)
        matrix = self.builder.matrix(name, weight, bias)
        x = self.tensor(node.args[0])
        out = self.builder.linear(self.rows(x), matrix)
        first = 0
        for one, part in zip(group, layers, strict=True):
            width = part.out_features
            self.env[one] = self.reshaped(out.sliced(1, first, width), self.shape(one))
            first += width

    def _layer(self, node: fx.Node) -> nn.Linear:
        layer = self.graph_module.get_submodule(str(node.target))
        assert isinstance(layer, nn.Linear)  # `cleaned` leaves no other modules
        return layer

    def _give(self, outputs: Any) -> None:
        for node in outputs:
            found = self.env.get(node)
            tensor = value(node)
            if found is None or tensor is None:
                raise TargetError("whet's native program gives tensors only; leave native out of the recipe")
            if isinstance(found, Called) and found.item is None:
                self.builder.results.append(Result(value=found.index))
            else:
                self.builder.results.append(Result(place=self.tensor(node)))


def joined(names: Sequence[str], layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None, str]:
    """Return one matrix of several linear layers with the same input, its bias, and its name."""
    owner = names[0].rpartition(".")[0]
    ends = [name.removeprefix(f"{owner}.") for name in names]
    name = ".".join(filter(None, (owner, "+".join(ends))))
    if len(layers) == 1:
        return layers[0].weight, layers[0].bias, name
    weight = torch.cat([layer.weight.detach() for layer in layers])
    if all(layer.bias is None for layer in layers):
        return weight, None, name
    biases = [torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach() for layer in layers]
    return weight, torch.cat(biases), name


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool | torch.SymFloat | int | float | bool)


def _has_sizes(node: fx.Node) -> bool:
    return any(_is_size(source) for source in node.all_input_nodes)
