"""SYN104 tolist-in-loop: a tensor becomes a Python list in every step, and the CPU waits for it.

Finds       `x.tolist()` of a tensor, with a `.cpu()` before it or not, in a step loop, a forward pass, or what they
            call.
Why slow    The copy starts when all kernels queued so far have run; then Python makes an object of every number.
Example     for x, y in loader: ...; predicted += model(x).argmax(1).tolist()
Instead     predicted.append(model(x).argmax(1)), and torch.cat(predicted).tolist() after the loop.
Gain        up to the share of the step that the CPU needs to queue its kernels; little on a CPU.
Fix         none: what is done with the list is not known.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Hit, Priority
from whet_audit.rule_context import RuleContext
from whet_audit.waits import WAIT_GAIN, copied_in, wait_for_copy

CODE = "SYN104"
NAME = "tolist-in-loop"
PRIORITY = Priority.MEDIUM


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of tolist() on what is a tensor, or was copied as one."""
    for call in context.calls("tolist"):
        if not isinstance(call.func, ast.Attribute) or call.args:
            continue
        copied = copied_in(context, call.func.value)
        wait = wait_for_copy(context, call, copied or call.func.value, known=copied is None)
        if wait is None:
            continue
        yield wait.if_often.hit(call, f"{context.shown(call)} makes the CPU wait for the GPU in every step", WAIT_GAIN)
