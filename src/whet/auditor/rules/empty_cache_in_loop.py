"""SYN112 empty-cache-in-loop: memory is given back in every step, and asked for again in the next.

Finds       torch.cuda.empty_cache() and its kin on other devices, and gc.collect(), in a step loop or in what it
            calls. Not where an exception is caught, nor under `if step % n`.
Why slow    empty_cache waits for the GPU and frees blocks that the next step allocates again with cudaMalloc, which
            waits too; gc.collect walks all Python objects, often for tens of milliseconds.
Example     for x, y in loader: ...; torch.cuda.empty_cache()
Instead     nothing: PyTorch uses freed blocks again. Where memory is short, `del` large tensors, or
            PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.
Gain        1 to 20 % of the step; for a process near its memory limit it may be what keeps it alive.
Fix         unsafe: peak memory may grow.
Source      PyTorch documentation of torch.cuda.empty_cache; notes, "CUDA semantics: memory management".
"""

import ast
from collections.abc import Iterator

from whet.auditor.finding import Fix, Gain, Hit, Priority, ReplaceStatement
from whet.auditor.heat import INFERS, TRAINS, HeatKind
from whet.auditor.view import View
from whet.auditor.waits import wait_at

CODE = "SYN112"
NAME = "empty-cache-in-loop"
PRIORITY = Priority.HIGH
_GAIN = Gain(0.01, 0.2, "the caching allocator has to fetch its blocks again in each step; nothing on a CPU")
_GC_GAIN = Gain(0.0, 0.1, "a collection takes 10 to 100 ms in a process with many objects")
_DEVICES = ("cuda", "xpu", "mps", "npu", "accelerator", "hpu", "musa")
_FUNCTIONS = tuple(f"torch.{device}.empty_cache" for device in _DEVICES)


def check(view: View) -> Iterator[Hit]:
    """Calls of empty_cache() and gc.collect() in every step."""
    for call in view.calls("empty_cache", "collect"):
        dotted = view.dotted(call.func)
        is_collection = dotted == "gc.collect"
        of_accelerator = "get_accelerator" in view.source(call.func) and not is_collection
        if dotted not in _FUNCTIONS and not is_collection and not of_accelerator:
            continue
        wait = wait_at(view, call, is_sure=True)
        if wait is None or wait.hot.kind not in (*TRAINS, *INFERS, HeatKind.FORWARD):
            continue
        if wait.hot.kind == HeatKind.INFERENCE_CALL and not wait.hot.times_per_step:
            continue  # once a request
        yield Hit(
            at=call,
            hot=wait.hot,
            message=f"{view.shown(call)} "
            + ("walks all Python objects" if is_collection else "frees memory that is allocated again")
            + " in every step",
            confidence=wait.confidence,
            priority=Priority.MEDIUM if is_collection else wait.priority,
            gain=_GC_GAIN if is_collection else _GAIN,
            fix=_removed(view, call),
        )


def _removed(view: View, call: ast.Call) -> Fix | None:
    statement = view.parent(call)
    if not isinstance(statement, ast.Expr):
        return None
    return Fix("leave memory to the allocator", False, (ReplaceStatement(view.span(statement), ""),))
