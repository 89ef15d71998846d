"""MOV101 blocking-transfer: a copy to the GPU in a step loop that the CPU waits for.

Finds       `x.to(device)` or `x.cuda()` of a batch in a step loop, without `non_blocking=True`.
Why slow    The CPU stands still for the length of the copy instead of queueing the next kernels.
Example     for x, y in loader: x = x.to(device)
Instead     for x, y in loader: x = x.to(device, non_blocking=True)
Gain        copy time / step time, at most; nothing from pageable memory (see MOV102) or on a CPU.
Fix         safe: the default stream orders the copy before the kernels that read it.
Source      PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()".
"""

import ast
from collections.abc import Iterator

from whet.auditor.finding import Confidence, Gain, Hit, Priority
from whet.auditor.kinds import Kind
from whet.auditor.view import View, is_known

CODE = "MOV101"
NAME = "blocking-transfer"
PRIORITY = Priority.MEDIUM
_GAIN = Gain(0.0, 0.3, "up to the share of the step spent copying, with pinned memory")


def check(view: View) -> Iterator[Hit]:
    """Calls of to() and cuda() that move a tensor to a device which may be a GPU."""
    for call in view.calls("to", "cuda"):
        if not isinstance(call.func, ast.Attribute) or view.keyword(call, "non_blocking") or view.has_star(call):
            continue
        value = view.value(call.func.value)
        if value.kind not in (Kind.TENSOR, Kind.BATCH, Kind.ENCODING) or not moves_to_gpu(view, call):
            continue
        hot = view.hot(call)
        if hot is None or hot.guard:
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{view.shown(call)} waits for the copy in every step",
            confidence=Confidence.MEDIUM if value.is_sure else Confidence.LOW,
            gain=_GAIN,
            fix=view.set_keyword(call, "non_blocking", "True", "queue the copy and go on", safe=True),
        )


def moves_to_gpu(view: View, call: ast.Call) -> bool:
    """True unless the device is known to be the CPU, or the call only changes the dtype or follows another tensor."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return True
    target = view.keyword(call, "device", 0)
    if target is None:
        return False
    if view.kind(target) in (Kind.DTYPE, Kind.TENSOR, Kind.OUTPUT):
        return False
    device = view.constant(target)
    if is_known(device):
        return isinstance(device, int) or str(device).startswith("cuda")
    words = view.source(target)
    return "dtype" not in words and not words.endswith(".device")
