"""SYN101 item-in-loop: `.item()` of a tensor in every step, for which the CPU waits until the GPU has caught up.

Finds       `x.item()`, and `float(x)` or `int(x)` of a tensor, in a step loop or in what it calls.
Why slow    The value is not there before all kernels queued so far have run. Then the GPU idles until new ones come.
Example     for x, y in loader: ...; total += loss.item()
Instead     total += loss.detach(), and one `.item()` after the loop, or every hundred steps.
Gain        up to the share of the step that the CPU needs to queue its kernels; nothing on a CPU.
Fix         unsafe: a running sum of losses becomes a tensor; what prints it sees a tensor.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet.auditor.finding import Confidence, Fix, Gain, Hit, Priority
from whet.auditor.kinds import Kind
from whet.auditor.view import View

CODE = "SYN101"
NAME = "item-in-loop"
PRIORITY = Priority.MEDIUM
_GAIN = Gain(0.0, 0.15, "a GPU that waits for its kernels to be queued; nothing on a CPU")


def check(view: View) -> Iterator[Hit]:
    """Calls of item() on what may be a tensor, and float() or int() of what is one."""
    if not view.mentions_gpu:
        return
    for call in view.calls("item"):
        if isinstance(call.func, ast.Attribute) and not call.args:
            yield from _hit(view, call, call.func.value)
    for call in view.calls("float", "int"):
        if isinstance(call.func, ast.Name) and len(call.args) == 1 and view.is_tensor(call.args[0], surely=True):
            yield from _hit(view, call, call.args[0])


def _hit(view: View, call: ast.Call, tensor: ast.expr) -> Iterator[Hit]:
    value = view.value(tensor)
    if value.kind not in (Kind.TENSOR, Kind.OUTPUT, Kind.UNKNOWN) or value.device == "cpu":
        return
    hot = view.hot(call)
    if hot is None or hot.guard:
        return
    yield Hit(
        at=call,
        hot=hot,
        message=f"{view.shown(call)} makes the CPU wait for the GPU in every step",
        confidence=Confidence.HIGH if value.kind is not Kind.UNKNOWN and value.is_sure else Confidence.MEDIUM,
        gain=_GAIN,
        fix=_detached(view, call, tensor),
    )


def _detached(view: View, call: ast.Call, tensor: ast.expr) -> Fix | None:
    """Only for a running sum: what else is done with the number is not known."""
    parent = view.parent(call)
    if not isinstance(parent, ast.AugAssign) or not isinstance(parent.op, ast.Add) or parent.value is not call:
        return None
    if not isinstance(call.func, ast.Attribute):
        return None
    return view.replace(
        call, f"{view.source(tensor)}.detach()", "sum on the GPU; read the sum after the loop", safe=False
    )
