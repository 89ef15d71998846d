"""Trace modules to graphs of aten operators, for techniques that look for patterns and rewrite them.

A graph comes from torch.export. It is cleaned so that it can be changed: linear layers are nn.Linear modules again,
with their original names, views are reshapes, and the checks of every dtype are removed.
"""

import contextlib
import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from whet.core.artefact import program
from whet.core.workload import ExaminedWorkload
from whet.core.workload.unseen import masked
from whet.errors import TargetError
from whet.measure.closeness import finite_entries

_aten = torch.ops.aten


class Traced(nn.Module):
    """Give a graph the calling convention of a flat module: tensors in, a tuple of tensors out."""

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.body(*tensors))


def trace(module: nn.Module, examined: ExaminedWorkload) -> fx.GraphModule:
    """Trace a module to a graph that may be rewritten. Its tensors are the module's own.

    Raises:
        TargetError: torch.export cannot trace the module.
    """
    if isinstance(module, Traced):
        return fx.GraphModule(module.body, copy.deepcopy(module.body.graph))
    return cleaned(program.export(module, examined))


def cleaned(made: torch.export.ExportedProgram) -> fx.GraphModule:
    """Return an exported program as a graph that may be rewritten."""
    exported = made.module(check_guards=False)
    exported.graph.set_codegen(fx.graph.CodeGen())
    _clean(exported.graph)
    traced = rebuild(exported)
    _restore_linears(traced)
    return rebuild(traced)


def rebuild(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Check a graph, and return it without dead nodes and without the tensors and modules that nothing uses."""
    graph_module.graph.eliminate_dead_code()
    graph_module.graph.lint()
    return fx.GraphModule(graph_module, graph_module.graph).eval()


def trace_original(examined: ExaminedWorkload) -> fx.GraphModule:
    """Return the original's graph, which must not be changed.

    Raises:
        TargetError: There is no graph.
    """
    return cleaned(program.original(examined))


def operator(node: Any) -> str:
    """Return a node's aten operator without its overload and without the underscore of in-place forms, as "add"."""
    if isinstance(node, fx.Node) and node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name.removeprefix("aten::")
        return name.removesuffix("_")
    return ""


def value(node: Any) -> Tensor | None:
    """Return the tensor by which torch.export records a node's shape and dtype; None for anything else."""
    found = node.meta.get("val") if isinstance(node, fx.Node) else None
    return found if isinstance(found, Tensor) else None


def parameter(graph_module: fx.GraphModule, node: Any) -> Tensor | None:
    """Return the parameter, buffer or constant that a node reads, or None where it reads none."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    owner, _, name = str(node.target).rpartition(".")
    found = getattr(graph_module.get_submodule(owner), name, None)
    return found if isinstance(found, Tensor) else None


def is_changed_in_place(node: fx.Node) -> bool:
    """Return whether any operator writes into this node's tensor."""
    return any(
        user.op == "call_function"
        and isinstance(user.target, torch._ops.OpOverload)
        and user.target._schema.is_mutable
        and bool(user.args)
        and user.args[0] is node
        for user in node.users
    )


def relative_error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the largest difference between two sets of outputs, as a fraction of each tensor's largest value."""
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if b.numel():
            finite = finite_entries(a.detach().double(), b.detach().double())
            if finite is None:
                return math.inf
            a, b = finite
            if b.numel():
                worst = max(worst, float((a - b).abs().max()) / (float(b.abs().max()) or 1.0))
    return worst


def verify(name: str, changed: nn.Module, module: nn.Module, examined: ExaminedWorkload, tolerance: float) -> None:
    """Check that a rewritten module answers the first calibration batch as before, also with other masks.

    A mask that the module does not bear, or for which it answers NaN, says nothing.

    Raises:
        TargetError: It answers otherwise.
    """
    with torch.no_grad(), without_tf32():
        for how, batch in (("", examined.flat_calibration[0]), *masked(examined.flat_calibration)):
            try:
                wanted = module(*batch)
            except Exception:
                if not how:
                    raise
                continue
            error = relative_error(*_where_finite(changed(*batch), wanted) if how else (changed(*batch), wanted))
            if not error <= tolerance:
                raise TargetError(
                    f"{name} changed the outputs{how} by {error:.1e} relative, more than {tolerance:.0e}; leave it out "
                    "of the recipe"
                )


def _where_finite(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return two sets of outputs with zeros in both where the second is not finite."""
    kept = [b.isfinite() for b in wanted]
    return tuple([torch.where(keep, y, 0) for y, keep in zip(ys, kept, strict=True)] for ys in (found, wanted))  # type: ignore[return-value]


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Compute float32 products in float32 while the context lasts.

    PyTorch runs convolutions on NVIDIA GPUs in TF32, whose 10 bits of mantissa differ by 1e-3 as soon as weights are
    scaled: two forms of one model can only be told apart without it. Settings that the user has mixed are left alone.
    """
    precision = torch.get_float32_matmul_precision()
    try:
        convolutions = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # torch refuses to tell where convolutions and recurrent layers were set apart
        convolutions = False
    try:
        if precision != "highest":
            torch.set_float32_matmul_precision("highest")
        if convolutions:
            torch.backends.cudnn.allow_tf32 = False
        yield
    finally:
        if precision != "highest":
            torch.set_float32_matmul_precision(precision)
        if convolutions:
            torch.backends.cudnn.allow_tf32 = True


def _clean(graph: fx.Graph) -> None:
    """Drop what pins dtypes or does nothing in evaluation, and let reshapes choose between view and copy."""
    for node in list(graph.nodes):
        name = operator(node)
        if name == "_assert_tensor_metadata":
            graph.erase_node(node)
        elif name in ("dropout", "feature_dropout", "alpha_dropout") and node.args[2] is False:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif name == "view" and node.target is _aten.view.default:
            node.target = _aten.reshape.default


def _restore_linears(graph_module: fx.GraphModule) -> None:
    """aten.linear on a stored weight -> nn.Linear, named as the weight's owner was."""
    for node in list(graph_module.graph.nodes):
        if node.target is not _aten.linear.default:
            continue
        x, weight, bias = (*node.args, None)[:3]
        weight_tensor = parameter(graph_module, weight)
        bias_tensor = parameter(graph_module, bias)
        if weight_tensor is None or weight_tensor.dim() != 2 or (bias is not None and bias_tensor is None):
            continue
        path = _place_linear(graph_module, weight, weight_tensor, bias_tensor)
        with graph_module.graph.inserting_before(node):
            call = graph_module.graph.call_module(path, (x,))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph_module.graph.erase_node(node)


def _place_linear(graph_module: fx.GraphModule, weight: fx.Node, weight_tensor: Tensor, bias: Tensor | None) -> str:
    """Put an nn.Linear with these very tensors into the module; where one is already there, reuse it."""
    owner, _, attribute = str(weight.target).rpartition(".")
    is_alone = attribute == "weight" and _is_read_once(graph_module, weight) and _has_bias(graph_module, owner, bias)
    for path in _names(owner if attribute == "weight" else str(weight.target).removesuffix("_weight")):
        there = _submodule(graph_module, path)
        if isinstance(there, nn.Linear) and there.weight is weight_tensor and there.bias is bias:
            return path
        if there is None or (is_alone and path == owner and _holds_only_linear(there)):
            break
    linear = nn.Linear(weight_tensor.shape[1], weight_tensor.shape[0], bias=bias is not None, device="meta")
    linear.weight = _as_parameter(weight_tensor)
    if bias is not None:
        linear.bias = _as_parameter(bias)
    if not graph_module.add_submodule(path, linear):
        raise TargetError(f"the traced model has no place for a linear layer at {path}")
    return path


def _names(path: str) -> Iterator[str]:
    yield path or "weight"
    for i in itertools.count():
        yield f"{path or 'weight'}_linear{i or ''}"


def _submodule(graph_module: fx.GraphModule, path: str) -> nn.Module | None:
    try:
        return graph_module.get_submodule(path)
    except AttributeError:
        return None


def _holds_only_linear(module: nn.Module) -> bool:
    names = {name for name, _ in module.named_parameters()} | {name for name, _ in module.named_buffers()}
    return type(module) is nn.Module and names <= {"weight", "bias"} and not list(module.children())


def _is_read_once(graph_module: fx.GraphModule, weight: fx.Node) -> bool:
    """A weight that something else reads too (a tied embedding) must keep a place of its own."""
    readers = [n for n in graph_module.graph.nodes if n.op == "get_attr" and n.target == weight.target]
    return sum(len(n.users) for n in readers) == 1


def _has_bias(graph_module: fx.GraphModule, owner: str, bias: Tensor | None) -> bool:
    """Return whether a layer with this bias can stand for the owner, whose bias is no other tensor that is read.

    A state-space model's scan reads the bias of a layer whose product leaves it out.
    """
    there = getattr(_submodule(graph_module, owner), "bias", None)
    return there is bias or all(n.op != "get_attr" or n.target != f"{owner}.bias" for n in graph_module.graph.nodes)


def _as_parameter(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
