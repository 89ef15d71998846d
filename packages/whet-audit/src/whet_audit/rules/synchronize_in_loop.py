"""SYN111 synchronize-in-loop: the CPU waits for the GPU in every step because it is told to.

Finds       torch.cuda.synchronize() and its kin on other devices, and synchronize() of a stream, in a step loop or in
            what it calls. Beside a clock, and for streams of one's own, it is a finding of low priority.
Why slow    The CPU queues no kernels until all have run, and the GPU then idles until new ones come.
Example     for x, y in loader: ...; optimizer.step(); torch.cuda.synchronize()
Instead     nothing: the stream keeps the order. To measure, CUDA events, read some steps later with event.query().
Gain        up to the share of the step that the CPU needs to queue its kernels; nothing on a CPU.
Fix         unsafe: code outside PyTorch may rely on it. None beside a clock, beside a comment, and in functions that
            use streams, events or copies that do not block.
Source      PyTorch notes, "CUDA semantics: asynchronous execution".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.finding import Confidence, Fix, Hit, Priority, ReplaceStatement
from whet_audit.hot_paths import INFERS, TRAINS, HeatKind
from whet_audit.reasons import has_comment
from whet_audit.rule_context import RuleContext
from whet_audit.waits import WAIT_GAIN, is_timed, wait_at

CODE = "SYN111"
NAME = "synchronize-in-loop"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_RELIES = re.compile(r"non_blocking|[sS]tream\b|Event\(|elapsed|perf_counter|time\.time|CUDAGraph|\bdist\.|wait\(")
_DEVICES = ("cuda", "xpu", "mps", "npu", "accelerator", "hpu", "musa")
_FUNCTIONS = tuple(f"torch.{device}.synchronize" for device in _DEVICES)


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of synchronize() in every step."""
    for call in context.calls("synchronize"):
        dotted = context.dotted(call.func)
        owner = (
            context.source(call.func.value).lower() if isinstance(call.func, ast.Attribute) and not call.args else ""
        )
        is_whole = dotted in _FUNCTIONS or "current_stream" in owner or "get_accelerator" in owner
        if not is_whole and "stream" not in owner:
            continue
        wait = wait_at(context, call, is_sure=True)
        if wait is None or wait.hot.kind not in (*TRAINS, *INFERS, HeatKind.FORWARD):
            continue
        timed = is_timed(context, call)
        if timed and wait.hot.kind not in TRAINS:
            continue
        yield Hit(
            at=call,
            hot=wait.hot,
            message=f"{context.shown(call)} makes the CPU wait for the GPU in every step",
            confidence=wait.confidence if is_whole and not timed else Confidence.LOW,
            priority=wait.priority if is_whole and not timed else Priority.LOW,
            gain=WAIT_GAIN,
            fix=_removed(context, call) if is_whole and not timed else None,
        )


def _removed(context: RuleContext, call: ast.Call) -> Fix | None:
    statement = context.parent(call)
    if not isinstance(statement, ast.Expr) or has_comment(context.module, statement):
        return None
    around = context.function_of(call).node
    if _RELIES.search(context.module.text if isinstance(around, ast.Module) else context.source(around)):
        return None
    return Fix("do not wait", False, (ReplaceStatement(context.span(statement), ""),))
