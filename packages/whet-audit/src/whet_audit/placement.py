"""Which tensors lie in the CPU's memory, and which values an environment or a user outside of PyTorch waits for."""

from __future__ import annotations

import ast
import re

from whet_audit.abstract_types import Kind
from whet_audit.finding import HotPath
from whet_audit.hot_paths import HeatKind
from whet_audit.project import name_of, root_name
from whet_audit.rule_context import RuleContext
from whet_audit.source import COMPREHENSIONS, Function
from whet_audit.torch_names import FACTORIES

_COPIERS = frozenset("tensor as_tensor asarray".split())  # these leave the data of a tensor where it is
_MOVES = ("to", "cuda")
_ACTS = re.compile(r"_*((select|choose|get|sample|predict|take|pick|best|exploit)_(\w+_)?)?(act|actions?)(_\w+)?")
_ENVIRONMENT = re.compile(r"(^|_)(env|envs|environment|simulator)($|_)")
_OTHER_FRAMEWORK = re.compile(r"\b(mlx|mx|jax|jnp|tf|paddle)\.\w|\bimport (mlx|jax|tensorflow|paddle)\b")


def is_fresh_on_cpu(context: RuleContext, call: ast.Call) -> bool:
    """Whether a call is of a factory without a device, or of an operation of torch on such tensors alone."""
    dotted = context.dotted(call.func) or ""
    if not dotted.startswith("torch.") or "set_default_" in context.module.text:
        return False
    if dotted.count(".") == 1 and dotted.rpartition(".")[2] in FACTORIES:
        if any(keyword.arg in ("device", None) for keyword in call.keywords):
            return False
        is_of_tensor = bool(call.args) and context.kind(call.args[0]) in (Kind.TENSOR, Kind.OUTPUT)
        return not (name_of(call) in _COPIERS and is_of_tensor) and not name_of(call).endswith("_like")
    calls = [argument for argument in call.args if context.is_tensor(argument)]
    return bool(calls) and all(isinstance(one, ast.Call) and is_fresh_on_cpu(context, one) for one in calls)


def is_left_behind(context: RuleContext, tensor: ast.expr) -> bool:
    """Whether a tensor is a part of a loop's batch that stays where the loader has put it, while other parts move.

    Of `for images, targets in loader`, with `images` moved and `targets` never, the targets lie on the CPU; so does
    `batch[0]` where only the copies `batch[0].to(device)` are used as they are made.
    """
    name = root_name(tensor)
    for up in context.ancestors(tensor):
        if isinstance(up, COMPREHENSIONS):
            name = next((_source_of(one.target, one.iter, name) for one in reversed(up.generators)), name)
        elif isinstance(up, ast.For) and up in context.hot_paths.loops:
            parts = _names(up.target)
            return name in parts and _is_unmoved(context, context.function_of(up), up, name, parts)
        elif isinstance(up, ast.For):
            name = _source_of(up.target, up.iter, name)
        elif up in context.module.function_of_node:
            return False
    return False


def _source_of(target: ast.expr, iterable: ast.expr, name: str) -> str:
    """What a loop's name is an element of: `b` for y in `for x, y in zip(a, b)`; else the name itself."""
    if name not in _names(target):
        return name
    while isinstance(iterable, ast.Call) and name_of(iterable) in ("enumerate", "tqdm", "list") and iterable.args:
        if name_of(iterable) == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            target = target.elts[1]
        iterable = iterable.args[0]
    if isinstance(iterable, ast.Call) and name_of(iterable) == "zip" and isinstance(target, ast.Tuple):
        for part, source in zip(target.elts, iterable.args, strict=False):
            if name in _names(part):
                return root_name(source)
    return root_name(iterable)


def _is_unmoved(context: RuleContext, function: Function, loop: ast.For, name: str, parts: set[str]) -> bool:
    """Whether the loop moves another part of its batch, and neither moves, rebinds nor hands on this one before."""
    if any(binding.node is not loop for binding in function.bindings.get(name, ()) if binding.line >= loop.lineno):
        return False
    moved: set[str] = set()
    for call in function.calls:
        if name_of(call) in _MOVES and isinstance(call.func, ast.Attribute) and loop in context.ancestors(call):
            one = root_name(call.func.value)
            if one == name and isinstance(call.func.value, ast.Subscript):
                return True
            for up in context.ancestors(call):
                if isinstance(up, COMPREHENSIONS):
                    for generator in reversed(up.generators):
                        one = _source_of(generator.target, generator.iter, one)
            moved.add(one)
    return name not in moved and bool(moved & (parts - {name}))


def _names(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def is_for_environment(context: RuleContext, node: ast.AST, hot: HotPath | None) -> bool:
    """Whether a read or a copy belongs to acting: an environment on the CPU needs the action before it goes on."""
    function = context.function_of(node)
    if _ACTS.fullmatch(function.name) or (hot is not None and any(_ACTS.fullmatch(name) for name in hot.via)):
        return True
    statement = context.statement(node)
    if any(isinstance(part, ast.Call) and _ACTS.fullmatch(name_of(part)) for part in ast.walk(statement)):
        return not isinstance(statement, ast.For | ast.While | ast.With | ast.If | ast.FunctionDef)
    made = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for call in function.calls:
        if name_of(call) != "step" or not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        owner = call.func.value
        words = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if _ENVIRONMENT.search(words) and (made & _names(call.args[0]) or node in ast.walk(call)):
            return True
    return False


def is_of_other_framework(context: RuleContext, node: ast.AST) -> bool:
    """Whether a function computes with jax, mlx or the like, so that what looks like a tensor is none of torch's."""
    function = context.function_of(node)
    if isinstance(function.node, ast.Module):
        return False
    return _OTHER_FRAMEWORK.search(context.source(function.node)) is not None


def was_waited_for(context: RuleContext, node: ast.AST, hot: HotPath) -> bool:
    """Whether an earlier statement of the same block of an inference loop has waited for the GPU already.

    Results that go to the CPU one after the other cost one wait, at the first.
    """
    if hot.kind not in (HeatKind.INFERENCE, HeatKind.INFERENCE_CALL):
        return False
    statement = context.statement(node)
    parent = context.parent(statement)
    blocks = (getattr(parent, name, None) for name in ("body", "orelse"))
    block = next((one for one in blocks if isinstance(one, list) and statement in one), [])
    before = block[: block.index(statement)] if block else []
    for earlier in reversed(before):
        calls = [one for one in ast.walk(earlier) if isinstance(one, ast.Call)]
        if any(name_of(one) in ("cpu", "item", "tolist") and isinstance(one.func, ast.Attribute) for one in calls):
            return True
        if any(context.hot_paths.runs_model(one, context.module) for one in calls):
            return False
    return False
