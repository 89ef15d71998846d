"""Which DataLoader a loop runs over, and whether it pins: through names, arguments, attributes, helper functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

from whet_audit.constants import UNKNOWN_VALUE
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import Binding, Function, Module

_DEEPEST = 6
_WRAPPERS = frozenset("tqdm enumerate iter cycle islice track zip list prepare notebook_tqdm".split())
_LOADERS = (
    "torch.utils.data.DataLoader",
    "torch.utils.data.dataloader.DataLoader",
    "torch_geometric.loader.DataLoader",
    "torch_geometric.data.DataLoader",
    "torchdata.stateful_dataloader.StatefulDataLoader",
)


class Pinned(Enum):
    """Whether a loader's batches lie in pinned memory. MAYBE: it depends on what is not known, or on the device."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


def loader_calls(context: RuleContext) -> Iterator[ast.Call]:
    """The module's calls that make a DataLoader, under whatever name it was imported."""
    yield from context.calls_to(*_LOADERS)


def pinned(context: RuleContext, call: ast.Call) -> Pinned:
    """How a DataLoader is told to pin its memory."""
    given = context.keyword(call, "pin_memory", 7)
    if given is None:
        return Pinned.MAYBE if context.has_star(call) else Pinned.NO
    value = context.constant(given)
    if value is UNKNOWN_VALUE:
        return Pinned.YES if "is_available" in context.source(given) else Pinned.MAYBE
    return Pinned.YES if value else Pinned.NO


def loop_around(context: RuleContext, node: ast.AST) -> ast.For | None:
    """The innermost `for` over a loader that a node lies in."""
    for up in context.ancestors(node):
        if isinstance(up, ast.For) and loader_of(context, up.iter) is not None:
            return up
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
    return None


def is_from_pinned(context: RuleContext, node: ast.AST) -> bool:
    """Whether the batch at a node comes from a loader that pins its memory.

    Where its loop or its loader cannot be followed, all loaders of the module have to do so.
    """
    loop = loop_around(context, node)
    made = loader_of(context, loop.iter) if loop is not None else None
    if made is not None:
        return pinned(context, made) is Pinned.YES
    known = [pinned(context, call) for call in loader_calls(context)]
    return bool(known) and all(one is Pinned.YES for one in known)


def loader_of(context: RuleContext, expression: ast.expr) -> ast.Call | None:
    """The call of this module that makes the loader an expression stands for; None where it cannot be followed."""
    return _follow(context, context.module, expression, 0)


def _follow(context: RuleContext, module: Module, e: ast.expr, depth: int) -> ast.Call | None:
    if depth > _DEEPEST or module is not context.module:
        return None
    match e:
        case ast.Call():
            if context.dotted(e.func) in _LOADERS:
                return e
            if name_of(e) in _WRAPPERS and e.args:
                return _follow(context, module, e.args[0], depth + 1)
            made_by = context.target(e)
            if made_by is None or not made_by.returns:
                return None
            returned = made_by.returns[-1].value
            return None if returned is None else _follow(context, made_by.module, returned, depth + 1)
        case ast.Name():
            function: Function | None = module.function_of(e)
            while function is not None:
                if e.id in function.bindings:
                    return _bound(context, module, function.bindings[e.id], depth)
                if any(argument.arg == e.id for argument in function.arguments):
                    return _given(context, function, e.id, depth)
                function = function.parent
        case ast.Attribute(value=ast.Name(id="self")):
            cls = module.class_of(e)
            bindings = context.project.attribute(cls, e.attr) if cls is not None else []
            return _bound(context, module, bindings, depth)
    return None


def _bound(context: RuleContext, module: Module, bindings: list[Binding], depth: int) -> ast.Call | None:
    for binding in reversed(bindings):
        if binding.how != "value" or binding.value is None:
            continue
        value = binding.value
        if binding.path and isinstance(value, ast.Call):
            target = context.target(value)
            if name_of(value) == "prepare" and binding.path[0] < len(value.args):
                value = value.args[binding.path[0]]
            elif target is not None and target.returns:
                returned = target.returns[-1].value
                if not isinstance(returned, ast.Tuple) or binding.path[0] >= len(returned.elts):
                    continue
                value = returned.elts[binding.path[0]]
            else:
                continue
        elif binding.path:
            continue
        found = _follow(context, module, value, depth + 1)
        if found is not None:
            return found
    return None


def _given(context: RuleContext, function: Function, name: str, depth: int) -> ast.Call | None:
    names = [argument.arg for argument in function.arguments]
    place = names.index(name) - (1 if names[:1] == ["self"] else 0)
    for at, call in context.project.callers(function)[:4]:
        given = context.keyword(call, name, place)
        found = _follow(context, at.module, given, depth + 1) if given is not None else None
        if found is not None:
            return found
    return None
