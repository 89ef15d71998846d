"""Code that runs in several processes: which module does, and what only one of them runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from whet_audit.rule_context import RuleContext
from whet_audit.source import Module

WRAPPERS = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
_RANK = re.compile(
    r"(^|\W|_)(rank|ranks|is_main|main_process|is_master|master|is_global_zero|is_rank_?zero|rank_?0|rank_?zero|"
    r"is_primary|is_world_process_zero|is_local_process_zero|is_world_master|is_chief|is_root|rank_zero_only|"
    r"is_first_worker|should_save|only_main|on_main|on_master|is_main_node|get_rank|is_logger|primary)\b",
    re.IGNORECASE,
)
_STARTS = ("init_process_group", "init_distributed", "setup_distributed", "init_distributed_mode")


def wraps(context: RuleContext) -> Iterator[ast.Call]:
    """Calls that wrap a model in DistributedDataParallel."""
    yield from context.calls_to(*WRAPPERS)


def runs_in_processes(context: RuleContext) -> bool:
    """Whether a module itself sets up data parallelism over processes."""
    return any(True for _ in wraps(context)) or any(True for _ in context.calls(*_STARTS))


def wrappers_kept(context: RuleContext) -> Iterator[ast.expr]:
    """Where the wrapper itself is put into a variable, to be called later with options from elsewhere."""
    for assignment in context.nodes(ast.Assign):
        if isinstance(assignment.value, ast.Attribute) and context.dotted(assignment.value) in WRAPPERS:
            yield assignment.value


def is_on_one_rank(context: RuleContext, node: ast.AST) -> bool:
    """Whether one rank alone runs a node: by a condition, a decorator, an early return, or in a caller."""
    return _is_on_one_rank(context, context.module, node, 2)


def _is_on_one_rank(context: RuleContext, module: Module, node: ast.AST, depth: int) -> bool:
    child = node
    for up in module.ancestors(node):
        if isinstance(up, ast.If | ast.IfExp) and child is not up.test and _RANK.search(module.source_of(up.test)):
            return True
        if isinstance(up, ast.BoolOp) and _RANK.search(module.source_of(up)):
            return True
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef) and _is_of_one_rank(module, up):
            return True
        if isinstance(child, ast.stmt) and _is_left_by_others(module, up, child):
            return True
        child = up
    function = module.function_of(node)
    callers = context.project.callers(function) if depth and not isinstance(function.node, ast.Module) else []
    return any(_is_on_one_rank(context, at.module, call, depth - 1) for at, call in callers[:8])


def _is_of_one_rank(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = (module.source_of(decorator) for decorator in function.decorator_list)
    return any(_RANK.search(words) for words in (function.name, *decorators))


def _is_left_by_others(module: Module, up: ast.AST, child: ast.stmt) -> bool:
    """An earlier `if rank != 0: return` in the same block."""
    block = getattr(up, "body", [])
    if not isinstance(block, list) or child not in block:
        return False
    return any(
        isinstance(s, ast.If)
        and isinstance(s.body[-1], ast.Return | ast.Continue)
        and _RANK.search(module.source_of(s.test))
        for s in block[: block.index(child)]
    )


def is_rank_test(context: RuleContext, test: ast.expr) -> bool:
    """Whether a condition asks for the rank and nothing else."""
    return _RANK.search(context.source(test)) is not None and not isinstance(test, ast.BoolOp)
