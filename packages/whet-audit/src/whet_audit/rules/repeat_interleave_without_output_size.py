"""SYN110 repeat-interleave-without-output-size: the CPU waits for the sum of the repeats in every step.

Finds       `torch.repeat_interleave(x, repeats)` and `x.repeat_interleave(repeats)` with a tensor of repeats and no
            `output_size`, in a step loop, a forward pass, or in what they call.
Why slow    The result's size is the sum of the repeats, which lies on the GPU.
Example     x.repeat_interleave(lengths, dim=0)
Instead     x.repeat_interleave(lengths, dim=0, output_size=total), total being known from the batch
Gain        up to the share of the step that the CPU needs to queue its kernels; nothing on a CPU.
Fix         none: where the size is known is not in the call.
Source      PyTorch documentation of torch.repeat_interleave, output_size: "avoids stream synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Hit, Priority
from whet_audit.rule_context import RuleContext
from whet_audit.waits import WAIT_GAIN, wait_for

CODE = "SYN110"
NAME = "repeat-interleave-without-output-size"
PRIORITY = Priority.MEDIUM
PREVIEW = True


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls as a function and as a method."""
    for call in context.calls("repeat_interleave"):
        if context.has_star(call) or context.keyword(call, "output_size") is not None:
            continue
        is_function = context.dotted(call.func) == "torch.repeat_interleave"
        repeats = context.keyword(call, "repeats", 1 if is_function else 0)
        if repeats is None and is_function:
            repeats = context.keyword(call, "input", 0)  # torch.repeat_interleave(repeats): indices
        if repeats is None or not (is_function or isinstance(call.func, ast.Attribute)):
            continue
        wait = wait_for(context, call, repeats)
        if wait is not None:
            yield wait.hit(
                call, f"{context.shown(call)} waits for the sum of {context.shown(repeats)} in every step", WAIT_GAIN
            )
