"""PRE102 deprecated-amp: mixed precision by names that are on their way out.

Finds       torch.cuda.amp.autocast, GradScaler, custom_fwd and custom_bwd, torch.cpu.amp, and apex.amp. Names imported
            by `from torch.cuda.amp import ...` are reported once, at the import.
Why slow    It is not; it warns on every use and will be removed. Apex is no longer maintained and keeps other
            speed-ups away, torch.compile among them.
Example     with torch.cuda.amp.autocast(): ...
Instead     with torch.amp.autocast("cuda"): ...
Gain        none by itself.
Fix         the old classes are the new ones with "cuda" for the device. torch.amp.GradScaler needs torch 2.3,
            torch.amp.autocast 1.10: safe where the project asks for at least that, unsafe where it does not say, none
            where it supports an older torch.
Source      PyTorch documentation, "Automatic Mixed Precision package", deprecation notes.
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import (
    AddImport,
    Confidence,
    Edit,
    Fix,
    Gain,
    Hit,
    Priority,
    ReplaceExpression,
    ReplaceStatement,
)
from whet_audit.project_words import mentions
from whet_audit.requirements import supports
from whet_audit.rule_context import RuleContext

CODE = "PRE102"
NAME = "deprecated-amp"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.0, "none by itself")
_MOVED = frozenset(("autocast", "GradScaler"))
_NAMES = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")
_OLD = tuple(f"torch.{device}.amp.{name}" for device in ("cuda", "cpu") for name in _NAMES)
_SINCE = {"autocast": (1, 10), "GradScaler": (2, 3)}
_ASKED = r"isinstance\([^()]*,[^()]*GradScaler"  # the new class is no instance of the old one
_MODULES = ("torch.cuda.amp", "torch.cpu.amp", "torch.cuda.amp.grad_scaler")
_FIRST = {"autocast": "enabled", "GradScaler": "init_scale"}  # what used to be the first argument


def check(context: RuleContext) -> Iterator[Hit]:
    """Imports of the old names, old names spelt out, and apex."""
    if "amp" not in context.module.text:
        return
    for statement in context.nodes(ast.ImportFrom):
        if statement.module in _MODULES and not statement.level:
            yield from _imported(context, statement)
    for attribute in context.nodes(ast.Attribute):
        if attribute.attr in _NAMES and context.dotted(attribute) in _OLD:
            yield from _spelt_out(context, attribute)
    for call in context.calls_to("apex.amp.initialize"):
        message = "apex.amp is no longer maintained: torch.amp does the same"
        yield Hit(at=call, message=message, confidence=Confidence.HIGH, gain=_GAIN)


def _imported(context: RuleContext, statement: ast.ImportFrom) -> Iterator[Hit]:
    if _is_fallback(context, statement) or not any(alias.name in _NAMES for alias in statement.names):
        return
    names = ", ".join(alias.name for alias in statement.names)
    message = f"{statement.module}.{names} is deprecated: torch.amp, with the device's name, takes its place"
    fix = _moved_import(context, statement)
    yield Hit(at=statement, message=message, confidence=Confidence.HIGH, gain=_GAIN, fix=fix)


def _spelt_out(context: RuleContext, attribute: ast.Attribute) -> Iterator[Hit]:
    if _is_fallback(context, attribute) or _is_annotation(context, attribute):
        return
    parent = context.parent(attribute)
    at: ast.expr = parent if isinstance(parent, ast.Call) and parent.func is attribute else attribute
    message = f"{context.shown(at)} is deprecated: torch.amp, with the device's name, takes its place"
    fix = None
    if isinstance(at, ast.Call) and attribute.attr in _MOVED:
        device = (context.dotted(attribute) or "").split(".")[1]
        source = _new_call(context, at, f"torch.amp.{attribute.attr}", attribute.attr, device)
        edits: list[Edit] = [] if source is None else [ReplaceExpression(context.span(at), source)]
        if edits and context.module.imports.get("torch") != "torch":
            edits.append(AddImport("torch"))
        fix = _fix(context, edits, [attribute.attr]) if edits else None
    yield Hit(at=at, message=message, confidence=Confidence.HIGH, gain=_GAIN, fix=fix)


def _moved_import(context: RuleContext, statement: ast.ImportFrom) -> Fix | None:
    """Import from torch.amp, and give each call of the imported names its device."""
    device = (statement.module or "").split(".")[1]
    edits: list[Edit] = []
    for alias in statement.names:
        local = alias.asname or alias.name
        uses = [name for name in context.nodes(ast.Name) if name.id == local]
        if alias.name not in _MOVED or any(isinstance(name.ctx, ast.Store) for name in uses):
            return None
        for name in uses:
            call = context.parent(name)
            source = _new_call(context, call, local, alias.name, device) if isinstance(call, ast.Call) else None
            if source is None or not isinstance(call, ast.Call) or call.func is not name:
                return None
            edits.append(ReplaceExpression(context.span(call), source))
    names = ", ".join(f"{a.name} as {a.asname}" if a.asname else a.name for a in statement.names)
    edits.append(ReplaceStatement(context.span(statement), f"from torch.amp import {names}"))
    return _fix(context, edits, [alias.name for alias in statement.names])


def _fix(context: RuleContext, edits: list[Edit], names: list[str]) -> Fix | None:
    """The edits as a fix, as safe as the project's requirements allow."""
    known = [supports(context.module.path, _SINCE[name]) for name in names]
    if False in known or mentions(context.project, context.module, _ASKED):
        return None
    return Fix("use torch.amp", None not in known, tuple(edits))


def _new_call(context: RuleContext, call: ast.Call, function: str, name: str, device: str) -> str | None:
    """The call with the device in front, and what used to come first by its name."""
    if len(call.args) > 1 or context.has_star(call):
        return None
    given = [f'"{device}"', *(f"{_FIRST[name]}={context.source(argument)}" for argument in call.args)]
    given += [context.source(keyword) for keyword in call.keywords]
    return f"{function}({', '.join(given)})"


def _is_annotation(context: RuleContext, attribute: ast.Attribute) -> bool:
    child: ast.AST = attribute
    for up in context.ancestors(attribute):
        if isinstance(up, ast.arg) or (isinstance(up, ast.AnnAssign) and child is up.annotation):
            return True
        if isinstance(up, ast.Call | ast.stmt):
            return False
        child = up
    return False


def _is_fallback(context: RuleContext, node: ast.AST) -> bool:
    """Whether it stands for older versions of torch: in an `except`, or beside a try or a test for the new name."""
    for up in context.ancestors(node):
        if isinstance(up, ast.ExceptHandler):
            return True
        if isinstance(up, ast.Try | ast.If) and "torch.amp" in context.source(up):
            return True
        if isinstance(up, ast.If) and any(word in context.source(up.test) for word in ("version", "hasattr", "TORCH")):
            return True
        if up in context.module.function_of_node and "version" in getattr(up, "name", ""):
            return True
    return False
