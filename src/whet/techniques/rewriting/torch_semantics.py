"""Write operators that other runtimes compute differently, in operators that they compute as torch does.

    division of integers     OpenVINO truncates where torch rounds down; ONNX Runtime's exporter truncates by floats
    8 and 16-bit arithmetic  OpenVINO saturates where torch wraps around
    floats to 8 and 16 bits  likewise
    attention without a key  OpenVINO answers NaN where torch answers 0

The module is traced, and its graph is run by an interpreter, which runs the spelled-out forms while torch.export traces
it again.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from whet.core.artefact import program
from whet.core.workload import ExaminedWorkload
from whet.techniques.rewriting.graph import cleaned, operator, value

_DIVISIONS = frozenset({"floor_divide", "div", "remainder", "fmod"})
_NARROW = {torch.uint8: 8, torch.int8: 8, torch.int16: 16}
_WRAPPING = frozenset({
    "add", "sub", "rsub", "mul", "neg", "abs", "square", "pow", "bitwise_not", "bitwise_left_shift", "__lshift__",
    "floor_divide", "div", "remainder", "fmod", "to", "_to_copy", "addcmul",
})  # fmt: skip
_CONVERSIONS = frozenset({"to", "_to_copy"})


def export(module: nn.Module, examined: ExaminedWorkload, runtime: str) -> torch.export.ExportedProgram:
    """Export a module as `program.export` does, with operators that a runtime computes as torch does.

    Args:
        module: The module, from flat tensors to flat tensors.
        runtime: "openvino" or "onnxruntime".

    Raises:
        TargetError: No graph can stand for the module.
    """
    exported = program.export(module, examined)
    traced = cleaned(exported)
    forms = {node: form for node in traced.graph.nodes if (form := _FORMS[runtime](node)) is not None}
    return program.export(_Spelled(traced, forms), examined) if forms else exported


class _Spelled(nn.Module):
    """Run a graph in which some operators are spelled out."""

    def __init__(self, body: fx.GraphModule, forms: Mapping[fx.Node, "_Form"]) -> None:
        super().__init__()
        self.body = body
        self.forms = forms

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(_Speller(self.body, self.forms).run(*tensors))


class _Speller(fx.Interpreter):
    """Run a graph, with the spelled-out form of each operator that has one."""

    def __init__(self, body: fx.GraphModule, forms: Mapping[fx.Node, "_Form"]) -> None:
        super().__init__(body)
        self._forms = forms
        self._masks: dict[fx.Node, tuple[Tensor, Tensor]] = {}  # layers share a mask, and then what is made of it

    def run_node(self, n: fx.Node) -> Any:
        form = self._forms.get(n)
        if form is None:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        found = form(self, n, args, kwargs)
        return args[0].copy_(found) if n.target._schema.is_mutable else found  # type: ignore[union-attr]

    def attend(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Compute attention whose mask may leave a query without a key: torch answers 0 there."""
        place = node.args[3] if len(node.args) > 3 else node.kwargs["attn_mask"]
        assert isinstance(place, fx.Node)
        if place not in self._masks:
            mask = self.env[place]
            is_kept = mask if mask.dtype is torch.bool else mask != -torch.inf
            has_key = is_kept.any(-1, keepdim=True)
            filled = mask | ~has_key if mask.dtype is torch.bool else torch.where(has_key, mask, 0.0)
            self._masks[place] = filled, has_key
        filled, has_key = self._masks[place]
        if len(args) > 3:
            args = (*args[:3], filled, *args[4:])
        else:
            kwargs = {**kwargs, "attn_mask": filled}
        found = node.target(*args, **kwargs)  # type: ignore[operator]
        return torch.where(has_key, found, 0.0)

    def divide(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Divide integers, or compute what a division leaves over."""
        return _wrapped(_divided(node, *_widened(args[:2])), node)

    def wrap(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Compute in 32 bits, and keep the lowest bits."""
        if operator(node) in _CONVERSIONS:
            given = args[0]
            return _wrapped(given.to(torch.int64) if given.is_floating_point() else given, node)
        return _wrapped(node.target(*_widened(args), **kwargs), node)  # type: ignore[operator]


_Form = Callable[[_Speller, fx.Node, tuple[Any, ...], dict[str, Any]], Tensor]


def _form_for_onnxruntime(node: fx.Node) -> _Form | None:
    found = value(node)
    is_truncated = operator(node) == "div" and node.kwargs.get("rounding_mode") == "trunc"
    return _Speller.divide if is_truncated and found is not None and _is_integer(found) else None


def _form_for_openvino(node: fx.Node) -> _Form | None:
    name, found = operator(node), value(node)
    if name == "scaled_dot_product_attention":
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        return _Speller.attend if isinstance(mask, fx.Node) and _depends_on_inputs(mask) else None
    if not name or found is None:
        return None
    if name in _DIVISIONS and _is_integer(found):
        return _Speller.divide
    return _Speller.wrap if name in _WRAPPING and found.dtype in _NARROW and _may_wrap(node, name, found) else None


_FORMS: Mapping[str, Callable[[fx.Node], _Form | None]] = {
    "openvino": _form_for_openvino,
    "onnxruntime": _form_for_onnxruntime,
}


def _may_wrap(node: fx.Node, name: str, found: Tensor) -> bool:
    """Return whether an operator with a narrow result may leave its range: not where it only widens a narrower one."""
    if name not in _CONVERSIONS:
        return True
    given = value(node.args[0])
    return given is not None and given.dtype not in (found.dtype, torch.bool)


def _depends_on_inputs(node: fx.Node) -> bool:
    waiting, seen = [node], {node}
    while waiting:
        last = waiting.pop()
        if last.op == "placeholder":
            return True
        waiting += [source for source in last.all_input_nodes if source not in seen]
        seen.update(last.all_input_nodes)
    return False


def _is_integer(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype is torch.bool)


def _widened(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with narrow integers in 32 bits."""
    return tuple(x.to(torch.int32) if isinstance(x, Tensor) and x.dtype in _NARROW else x for x in args)


def _wrapped(x: Tensor, node: fx.Node) -> Tensor:
    """Return an integer tensor in a node's dtype, wrapped around its range as torch does."""
    found = value(node)
    assert found is not None
    bits = _NARROW.get(found.dtype)
    if bits is not None:
        x = x.bitwise_and(2**bits - 1)
        if found.dtype.is_signed:
            x = x - (x >= 2 ** (bits - 1)).to(x.dtype) * 2**bits
    return x.to(found.dtype)


def _divided(node: fx.Node, a: Any, b: Any) -> Tensor:
    """Return a // b, a % b and the like, right whichever way the runtime rounds its own quotient."""
    a = a if isinstance(a, Tensor) else torch.full_like(b, a)
    quotient: Tensor = torch.floor_divide(a, b)
    rest: Tensor = a - quotient * b
    differs = rest != 0
    name = operator(node)
    if name in ("floor_divide", "remainder") or node.kwargs.get("rounding_mode") == "floor":
        wrong = (differs & ((rest < 0) != (b < 0))).to(quotient.dtype)
        return _sum(rest, wrong * b) if name == "remainder" else _sum(quotient, -wrong)
    wrong = (differs & ((rest < 0) != (a < 0))).to(quotient.dtype)
    return _sum(rest, -wrong * b) if name == "fmod" else _sum(quotient, wrong)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    return a.add(b)
