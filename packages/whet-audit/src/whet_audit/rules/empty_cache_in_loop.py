"""SYN112 empty-cache-in-loop: memory is given back in every step, and asked for again in the next.

Finds       torch.cuda.empty_cache() and its kin on other devices, and gc.collect(), in a step loop or in what it
            calls. Not where an exception is caught, nor under `if step % n`.
Why slow    empty_cache waits for the GPU and frees blocks that the next step allocates again with cudaMalloc, which
            waits too; gc.collect walks all Python objects, often for tens of milliseconds.
Example     for x, y in loader: ...; torch.cuda.empty_cache()
Instead     nothing: PyTorch uses freed blocks again. Where memory is short, `del` large tensors, or
            PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.
Gain        1 to 20% of the step; for a process near its memory limit it may be what keeps it alive.
Fix         unsafe: peak memory may grow. None beside a comment, right after tensors are deleted or moved to the CPU,
            under a condition of its own, and in functions that are there to free memory: there somebody needs it.
Source      PyTorch documentation of torch.cuda.empty_cache; notes, "CUDA semantics: memory management".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.finding import Fix, Gain, Hit, Priority, ReplaceStatement
from whet_audit.hot_paths import INFERS, TRAINS, HeatKind
from whet_audit.project import name_of
from whet_audit.reasons import has_comment
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function
from whet_audit.waits import wait_at

CODE = "SYN112"
NAME = "empty-cache-in-loop"
PRIORITY = Priority.HIGH
PREVIEW = True
_GAIN = Gain(0.01, 0.2, "the caching allocator has to fetch its blocks again in each step; nothing on a CPU")
_GC_GAIN = Gain(0.0, 0.1, "a collection takes 10 to 100 ms in a process with many objects")
_FREES = re.compile(r"(^|_)(free|clear|clean|cleanup|flush|release|empty|gc|cache|memory|offload|unload)(_|$)", re.I)
_AFTER_DELETING = re.compile(r"\bdel [\w., ]+\n\s*(gc\.collect\(\)\n\s*)?torch\.\w+\.empty_cache")
_MEASURES = re.compile(r"memory_(allocated|reserved)|max_memory|OutOfMemory|sleep_mode")
_DEVICES = ("cuda", "xpu", "mps", "npu", "accelerator", "hpu", "musa")
_FUNCTIONS = tuple(f"torch.{device}.empty_cache" for device in _DEVICES)


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of empty_cache() and gc.collect() in every step."""
    for call in context.calls("empty_cache", "collect"):
        dotted = context.dotted(call.func)
        is_collection = dotted == "gc.collect"
        of_accelerator = "get_accelerator" in context.source(call.func) and not is_collection
        if dotted not in _FUNCTIONS and not is_collection and not of_accelerator:
            continue
        wait = wait_at(context, call, is_sure=True)
        if wait is None or wait.hot.kind not in (*TRAINS, *INFERS, HeatKind.FORWARD):
            continue
        if wait.hot.kind == HeatKind.INFERENCE_CALL and not wait.hot.times_per_step:
            continue  # once a request
        yield Hit(
            at=call,
            hot=wait.hot,
            message=f"{context.shown(call)} "
            + ("walks all Python objects" if is_collection else "frees memory that is allocated again")
            + " in every step",
            confidence=wait.confidence,
            priority=Priority.MEDIUM if is_collection else wait.priority,
            gain=_GC_GAIN if is_collection else _GAIN,
            fix=_removed(context, call),
        )


def _removed(context: RuleContext, call: ast.Call) -> Fix | None:
    statement = context.parent(call)
    if not isinstance(statement, ast.Expr) or has_comment(context.module, statement) or _is_meant(context, statement):
        return None
    return Fix("leave memory to the allocator", False, (ReplaceStatement(context.span(statement), ""),))


def _is_meant(context: RuleContext, statement: ast.Expr) -> bool:
    """Whether the place shows that memory is short, or that it is measured."""
    function = context.function_of(statement)
    if _FREES.search(function.name) or _MEASURES.search(_source_of(context, function)):
        return True
    if _AFTER_DELETING.search(context.module.text):
        return True
    parent = context.parent(statement)
    if isinstance(parent, ast.If):
        return True
    block = next((b for b in (getattr(parent, "body", []), getattr(parent, "orelse", [])) if statement in b), [])
    before = block[: block.index(statement)] if block else []
    while before and isinstance(before[-1], ast.Expr) and _is_of_memory(before[-1].value):
        before = before[:-1]  # gc.collect() and empty_cache() in a row
    return bool(before) and (isinstance(before[-1], ast.Delete) or _moves_away(before[-1]))


def _source_of(context: RuleContext, function: Function) -> str:
    return "" if isinstance(function.node, ast.Module) else context.source(function.node)


def _is_of_memory(e: ast.expr) -> bool:
    return isinstance(e, ast.Call) and name_of(e) in ("collect", "empty_cache", "synchronize")


def _moves_away(statement: ast.stmt) -> bool:
    """Whether a statement moves something to the CPU or sets it to None."""
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
        return statement.value.value is None
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(name_of(c) == "cpu" or (name_of(c) == "to" and "cpu" in ast.unparse(c)) for c in calls)
