"""SYN101 item-in-loop: a tensor's value is read in every step, and the CPU waits until the GPU has caught up.

Finds       `x.item()`, and `float(x)` or `int(x)` of a tensor, in a step loop, a forward pass, or in what they call.
Why slow    The value is not there before all kernels queued so far have run. Then the GPU idles until new ones come.
Example     for x, y in loader: ...; total += loss.item()
Instead     total += loss.detach(), and one `.item()` after the loop, or every hundred steps.
Gain        up to the share of the step that the CPU needs to queue its kernels; nothing on a CPU.
Fix         unsafe: a running sum of losses becomes a tensor; what prints it sees a tensor.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet.auditor.finding import Fix, Hit, Priority
from whet.auditor.heat import TRAINS
from whet.auditor.project import name_of
from whet.auditor.view import View
from whet.auditor.waits import WAIT_GAIN, copied_in, is_tensor_value, wait_for

CODE = "SYN101"
NAME = "item-in-loop"
PRIORITY = Priority.MEDIUM
_WAITED_FOR = frozenset("nonzero argwhere tolist numpy unique".split())  # other rules report these


def check(view: View) -> Iterator[Hit]:
    """Calls of item() on what may be a tensor, and float() or int() of what is one."""
    for call in view.calls("item"):
        if isinstance(call.func, ast.Attribute) and not call.args:
            yield from _hit(view, call, call.func.value, known=False)
    for call in view.calls("float", "int"):
        if not isinstance(call.func, ast.Name) or len(call.args) != 1 or not is_tensor_value(view, call.args[0]):
            continue
        value = view.value(call.args[0])
        hot = view.hot(call)
        if value.is_sure or (hot is not None and hot.kind in TRAINS):
            yield from _hit(view, call, call.args[0], known=True)


def _hit(view: View, call: ast.Call, tensor: ast.expr, *, known: bool) -> Iterator[Hit]:
    if any(isinstance(link, ast.Call) and name_of(link) in _WAITED_FOR for link in _links(tensor)):
        return
    tensor = copied_in(view, tensor) or tensor
    wait = wait_for(view, call, tensor, known=known)
    if wait is None:
        return
    yield wait.hit(
        call,
        f"{view.shown(call)} makes the CPU wait for the GPU in every step",
        WAIT_GAIN,
        fix=_detached(view, call, tensor),
    )


def _links(expression: ast.expr) -> Iterator[ast.expr]:
    while isinstance(expression, ast.Attribute | ast.Call | ast.Subscript):
        yield expression
        expression = expression.func if isinstance(expression, ast.Call) else expression.value


def _detached(view: View, call: ast.Call, tensor: ast.expr) -> Fix | None:
    """Only for a running sum: what else is done with the number is not known."""
    parent = view.parent(call)
    if not isinstance(parent, ast.AugAssign) or not isinstance(parent.op, ast.Add) or parent.value is not call:
        return None
    if not isinstance(call.func, ast.Attribute) or tensor is not call.func.value:
        return None
    return view.replace(
        call, f"{view.source(tensor)}.detach()", "sum on the GPU; read the sum after the loop", safe=False
    )
