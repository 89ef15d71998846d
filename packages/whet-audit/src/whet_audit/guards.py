"""Conditions that keep code from running in every step: `if step % 100 == 0`, `except`, a debug flag."""

from __future__ import annotations

import ast
import re

from whet_audit.source import Module

_SELDOM = re.compile(
    r"(^|_)(verbose|debug|profile|profiling|plot|visuali[sz]e|vis|save|checkpoint|ckpt|dry_run|sanity|nan|isnan|isinf|"
    r"isfinite|early_stop|is_last|last_step|first_step|logging_steps?|log_every|log_interval|eval_interval|do_log|"
    r"should_log|log_now|print_freq|print_every|do_eval|should_save|should_eval|overflow|patience|warned)($|_)",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(^|_)(i|idx|it|iter|iteration|step|steps|batch_idx|batch_id|batch_i|batch_count|global_step|n_iter|epoch)($|_)"
)
_EXITS = ("sys.exit", "exit", "quit", "os._exit", "os.abort")
_LEAVES = (ast.Continue, ast.Return, ast.Break, ast.Raise)


def guard_above(module: Module, up: ast.AST, child: ast.AST) -> str:
    """The rare condition under which `child`, a direct child of `up`, runs; "" where it runs whenever `up` does."""
    if isinstance(up, ast.ExceptHandler):
        return "an exception is caught"
    if isinstance(up, ast.If | ast.IfExp):
        is_body = child in up.body if isinstance(up, ast.If) else child is up.body
        is_else = child in up.orelse if isinstance(up, ast.If) else child is up.orelse
        if is_body and (is_seldom(up.test) or _begins(module, up) or (isinstance(up, ast.If) and _gives_up(up, child))):
            return module.shown(up.test)
        if is_else and isinstance(up.test, ast.UnaryOp) and isinstance(up.test.op, ast.Not):
            return module.shown(up.test.operand) if is_seldom(up.test.operand) else ""
        return ""
    if isinstance(child, ast.stmt):
        return _left_before(module, up, child)
    return ""


def is_seldom(test: ast.expr) -> bool:
    """Whether a condition holds in few steps: a step number modulo something, one step number, a flag for debugging."""
    if isinstance(test, ast.BoolOp):
        parts = [is_seldom(value) for value in test.values]
        return any(parts) if isinstance(test.op, ast.And) else all(parts)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return isinstance(test.operand, ast.BinOp) and isinstance(test.operand.op, ast.Mod)
    if isinstance(test, ast.Compare):
        if any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in ast.walk(test.left)):
            return isinstance(test.ops[0], ast.Eq)
        is_one_step = isinstance(test.ops[0], ast.Eq) and (
            _STEP.search(_last_name(test.left)) is not None or _is_last(test.comparators[0])
        )
        return is_one_step or any(_SELDOM.search(_last_name(side)) for side in (test.left, *test.comparators))
    if isinstance(test, ast.Call):
        return _SELDOM.search(_last_name(test.func)) is not None
    return _SELDOM.search(_last_name(test)) is not None


def _is_last(bound: ast.expr) -> bool:
    """Whether it is the number of the last step: `total - 1`, `len(loader) - 1`."""
    if not isinstance(bound, ast.BinOp) or not isinstance(bound.op, ast.Sub):
        return False
    return isinstance(bound.right, ast.Constant) and bound.right.value == 1


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _begins(module: Module, branch: ast.If | ast.IfExp) -> bool:
    """Whether it is the first turn: `total = x.item() if total is None else total + x.item()`."""
    test = branch.test
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Is):
        return False
    if not isinstance(test.comparators[0], ast.Constant) or test.comparators[0].value is not None:
        return False
    held = ast.unparse(test.left)
    statements = branch.body if isinstance(branch, ast.If) else [module.statement_of(branch)]
    bound = [target for one in statements if isinstance(one, ast.Assign) for target in one.targets]
    if held not in [ast.unparse(target) for target in bound]:
        return False
    if not isinstance(test.left, ast.Name):
        return held.startswith("self.")
    bindings = module.function_of(branch).bindings.get(held, ())
    begins = [b.line for b in bindings if isinstance(b.value, ast.Constant) and b.value.value is None]
    loops = [up.lineno for up in module.ancestors(branch) if isinstance(up, ast.For | ast.While)]
    return any(line < max(loops, default=0) for line in begins)  # None before the loop, so in its first turn alone


def _gives_up(branch: ast.If, child: ast.AST) -> bool:
    """Whether the branch ends the loop or raises: what it does on the way, it does once."""
    for statement in branch.body:
        called = statement.value if isinstance(statement, ast.Expr) else None
        is_exit = isinstance(called, ast.Call) and ast.unparse(called.func) in _EXITS
        if is_exit or isinstance(statement, ast.Raise | ast.Break):
            return True
    return False


def _left_before(module: Module, up: ast.AST, child: ast.stmt) -> str:
    """The condition of an earlier `if step % n: continue` in the same block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(up, name, None)
        if not isinstance(block, list) or child not in block:
            continue
        for statement in block[: block.index(child)]:
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], _LEAVES):
                test = statement.test
                is_any = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
                parts = test.values if is_any and isinstance(test, ast.BoolOp) else [test]
                if any(_holds_mostly(part) for part in parts):
                    return f"not ({module.shown(test)})"
    return ""


def _holds_mostly(test: ast.expr) -> bool:
    """Whether it is `step % n`, or `step % n != 0`."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq):
        return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(test.left))
    return isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod)
