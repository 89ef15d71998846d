"""MEM106 all-hidden-states-kept: the outputs of all layers are kept where the last one, or none, is used.

Finds       `output_hidden_states=True` or `output_attentions=True` in hot code that reads none of them, or only `[-1]`;
            lists of layer outputs in a forward pass of which only `[-1]` is read.
Why slow    Memory for all layers. Attention weights can't come from a fused kernel, so it falls back to the slow one.
Example     h = model(ids, output_hidden_states=True).hidden_states[-1]
Instead     h = model(ids).last_hidden_state
Gain        for attentions the gap between fused and plain attention; for hidden states memory alone.
Fix         safe for hidden states of a Transformers model of which none is read, nor any result by its number; unsafe
            for attentions, without which a fused kernel rounds in another order. None for models of other origin.
Source      Transformers, "Model outputs" and "Attention interface".
"""

import ast
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Fix, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

CODE = "MEM106"
NAME = "all-hidden-states-kept"
PRIORITY = Priority.LOW
PREVIEW = True
_GAIN = Gain(0.0, 0.05, "allocations of all layers' outputs")
_ATTENTION_GAIN = Gain(0.0, 0.3, "attention falls back from the fused kernel, with long sequences")
_FIELDS = {"output_hidden_states": "hidden_states", "output_attentions": "attentions"}


def check(context: RuleContext) -> Iterator[Hit]:
    """Model calls that ask for all layers, and lists filled in forward passes."""
    for keyword in context.nodes(ast.keyword):
        call = context.parent(keyword)
        if keyword.arg in _FIELDS and isinstance(call, ast.Call) and _is_true(keyword.value):
            yield from _asked(context, call, keyword.arg)
    for append in context.calls("append"):
        yield from _gathered(context, append)


def _asked(context: RuleContext, call: ast.Call, option: str) -> Iterator[Hit]:
    if context.call_kind(call) is not CallKind.MODEL:
        return
    hot = context.hot(call)
    if hot is None or hot.guard:
        return
    reads = _reads(context, call)
    if reads is None:
        return
    fields, by_number = reads
    uses = [read for name, read in fields if _FIELDS[option] in name]
    if any(read != "-1" for read in uses) or (by_number and not fields):
        return
    what = "only the last is read" if uses else "none is read"
    fix = None
    if not uses and not by_number:
        fix = _not_asked(context, call, option)
    yield Hit(
        at=call,
        hot=hot,
        message=f"{option}=True keeps those of all layers, and {what}",
        confidence=Confidence.MEDIUM,
        gain=_ATTENTION_GAIN if option == "output_attentions" else _GAIN,
        fix=fix,
    )


def _not_asked(context: RuleContext, call: ast.Call, option: str) -> Fix | None:
    model = context.value(call.func)
    is_library = model.is_sure and model.cls is None and (model.dotted or "").startswith("transformers.")
    if model.cls is not None:
        forward = context.project.method(model.cls, "forward")
        if forward is None or forward.default_of(option) is None:
            return None
    is_safe = is_library and option == "output_hidden_states"
    return context.remove_keyword(call, option, "ask for what is read", safe=is_safe)


def _reads(context: RuleContext, call: ast.Call) -> tuple[list[tuple[str, str]], bool] | None:
    """(field, index) of all that is read of a call's result, and whether by number; None where it goes elsewhere."""
    parent = context.parent(call)
    if isinstance(parent, ast.Attribute):
        return [(parent.attr, _index(context, parent))], False
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or not isinstance(parent.targets[0], ast.Name):
        return None
    name = parent.targets[0].id
    fields, by_number = [], False
    for node in context.nodes(ast.Name):
        if (
            node.id != name
            or not isinstance(node.ctx, ast.Load)
            or context.function_of(node) is not context.function_of(call)
        ):
            continue
        user = context.parent(node)
        if isinstance(user, ast.Attribute) and user.value is node:
            fields.append((user.attr, _index(context, user)))
        elif isinstance(user, ast.Subscript) and isinstance(user.slice, ast.Constant):
            if isinstance(user.slice.value, str):
                fields.append((user.slice.value, _index(context, user)))
            by_number = by_number or isinstance(user.slice.value, int)
            if isinstance(user.slice.value, int) and user.slice.value != 0:
                return None
        else:
            return None
    return fields, by_number


def _index(context: RuleContext, node: ast.expr) -> str:
    parent = context.parent(node)
    is_item = isinstance(parent, ast.Subscript) and parent.value is node
    return ast.unparse(parent.slice) if is_item and isinstance(parent, ast.Subscript) else ""


def _gathered(context: RuleContext, append: ast.Call) -> Iterator[Hit]:
    """`outputs.append(x)` for each layer, with `outputs[-1]` as the only reader."""
    owner = append.func.value if isinstance(append.func, ast.Attribute) else None
    if not isinstance(owner, ast.Name):
        return
    function = context.function_of(append)
    hot = context.hot(append)
    if function.name != "forward" or hot is None or hot.guard or hot.kind == HeatKind.DATA:
        return
    is_list = any(isinstance(b.value, ast.List) and not b.value.elts for b in function.bindings.get(owner.id, ()))
    readers = _readers(context, owner, function)
    if is_list and hot.times_per_step and readers and all(read == "-1" for read in readers):
        yield Hit(
            at=append,
            hot=hot,
            message=f"{owner.id} keeps the output of every round, and only {owner.id}[-1] is read",
            confidence=Confidence.HIGH,
            gain=_GAIN,
        )


def _readers(context: RuleContext, owner: ast.Name, function: Function) -> list[str]:
    found = []
    for node in context.nodes(ast.Name):
        if node.id == owner.id and isinstance(node.ctx, ast.Load) and context.function_of(node) is function:
            parent = context.parent(node)
            if not (isinstance(parent, ast.Attribute) and parent.attr == "append"):
                found.append(_index(context, node))
    return found


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
