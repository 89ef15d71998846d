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

from whet.auditor.finding import (
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
from whet.auditor.project_words import mentions
from whet.auditor.requirements import supports
from whet.auditor.view import View

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


def check(view: View) -> Iterator[Hit]:
    """Imports of the old names, old names spelt out, and apex."""
    if "amp" not in view.module.text:
        return
    for statement in view.nodes(ast.ImportFrom):
        if statement.module in _MODULES and not statement.level:
            yield from _imported(view, statement)
    for attribute in view.nodes(ast.Attribute):
        if attribute.attr in _NAMES and view.dotted(attribute) in _OLD:
            yield from _spelt_out(view, attribute)
    for call in view.calls_to("apex.amp.initialize"):
        message = "apex.amp is no longer maintained: torch.amp does the same"
        yield Hit(at=call, message=message, confidence=Confidence.HIGH, gain=_GAIN)


def _imported(view: View, statement: ast.ImportFrom) -> Iterator[Hit]:
    if _is_fallback(view, statement) or not any(alias.name in _NAMES for alias in statement.names):
        return
    names = ", ".join(alias.name for alias in statement.names)
    message = f"{statement.module}.{names} is deprecated: torch.amp, with the device's name, takes its place"
    fix = _moved_import(view, statement)
    yield Hit(at=statement, message=message, confidence=Confidence.HIGH, gain=_GAIN, fix=fix)


def _spelt_out(view: View, attribute: ast.Attribute) -> Iterator[Hit]:
    if _is_fallback(view, attribute) or _is_annotation(view, attribute):
        return
    parent = view.parent(attribute)
    at: ast.expr = parent if isinstance(parent, ast.Call) and parent.func is attribute else attribute
    message = f"{view.shown(at)} is deprecated: torch.amp, with the device's name, takes its place"
    fix = None
    if isinstance(at, ast.Call) and attribute.attr in _MOVED:
        device = (view.dotted(attribute) or "").split(".")[1]
        source = _new_call(view, at, f"torch.amp.{attribute.attr}", attribute.attr, device)
        edits: list[Edit] = [] if source is None else [ReplaceExpression(view.span(at), source)]
        if edits and view.module.imports.get("torch") != "torch":
            edits.append(AddImport("torch"))
        fix = _fix(view, edits, [attribute.attr]) if edits else None
    yield Hit(at=at, message=message, confidence=Confidence.HIGH, gain=_GAIN, fix=fix)


def _moved_import(view: View, statement: ast.ImportFrom) -> Fix | None:
    """Import from torch.amp, and give each call of the imported names its device."""
    device = (statement.module or "").split(".")[1]
    edits: list[Edit] = []
    for alias in statement.names:
        local = alias.asname or alias.name
        uses = [name for name in view.nodes(ast.Name) if name.id == local]
        if alias.name not in _MOVED or any(isinstance(name.ctx, ast.Store) for name in uses):
            return None
        for name in uses:
            call = view.parent(name)
            source = _new_call(view, call, local, alias.name, device) if isinstance(call, ast.Call) else None
            if source is None or not isinstance(call, ast.Call) or call.func is not name:
                return None
            edits.append(ReplaceExpression(view.span(call), source))
    names = ", ".join(f"{a.name} as {a.asname}" if a.asname else a.name for a in statement.names)
    edits.append(ReplaceStatement(view.span(statement), f"from torch.amp import {names}"))
    return _fix(view, edits, [alias.name for alias in statement.names])


def _fix(view: View, edits: list[Edit], names: list[str]) -> Fix | None:
    """The edits as a fix, as safe as the project's requirements allow."""
    known = [supports(view.module.path, _SINCE[name]) for name in names]
    if False in known or mentions(view.project, view.module, _ASKED):
        return None
    return Fix("use torch.amp", None not in known, tuple(edits))


def _new_call(view: View, call: ast.Call, function: str, name: str, device: str) -> str | None:
    """The call with the device in front, and what used to come first by its name."""
    if len(call.args) > 1 or view.has_star(call):
        return None
    given = [f'"{device}"', *(f"{_FIRST[name]}={view.source(argument)}" for argument in call.args)]
    given += [view.source(keyword) for keyword in call.keywords]
    return f"{function}({', '.join(given)})"


def _is_annotation(view: View, attribute: ast.Attribute) -> bool:
    child: ast.AST = attribute
    for up in view.ancestors(attribute):
        if isinstance(up, ast.arg) or (isinstance(up, ast.AnnAssign) and child is up.annotation):
            return True
        if isinstance(up, ast.Call | ast.stmt):
            return False
        child = up
    return False


def _is_fallback(view: View, node: ast.AST) -> bool:
    """Whether it stands for older versions of torch: in an `except`, or beside a try or a test for the new name."""
    for up in view.ancestors(node):
        if isinstance(up, ast.ExceptHandler):
            return True
        if isinstance(up, ast.Try | ast.If) and "torch.amp" in view.source(up):
            return True
        if isinstance(up, ast.If) and any(word in view.source(up.test) for word in ("version", "hasattr", "TORCH")):
            return True
        if up in view.module.function_of_node and "version" in getattr(up, "name", ""):
            return True
    return False
