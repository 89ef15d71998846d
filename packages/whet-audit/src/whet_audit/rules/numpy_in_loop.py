"""SYN103 numpy-in-loop: a tensor becomes a numpy array in every step, and the CPU waits for it.

Finds       `x.cpu().numpy()` with whatever lies between, and `np.array(x.cpu())`, in a step loop or a forward pass.
            `.numpy()` alone works on CPU tensors only, and is no finding.
Why slow    The copy starts when all kernels queued so far have run, and the CPU queues nothing until it ends.
Example     for x, y in loader: ...; predicted.append(model(x).argmax(1).detach().cpu().numpy())
Instead     predicted.append(model(x).argmax(1).detach()), and torch.cat(predicted).cpu().numpy() after the loop;
            or the same arithmetic in torch.
Gain        the time of the copy and up to the share of the step that the CPU needs to queue its kernels.
Fix         none: what is done with the array is not known.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Hit, Priority
from whet_audit.rule_context import RuleContext
from whet_audit.waits import COPY_GAIN, copied_in, wait_for_copy

CODE = "SYN103"
NAME = "numpy-in-loop"
PRIORITY = Priority.MEDIUM


def check(context: RuleContext) -> Iterator[Hit]:
    """Chains that copy a tensor to the CPU and end in numpy()."""
    for call in context.calls("numpy"):
        if isinstance(call.func, ast.Attribute):
            yield from _hit(context, call, call.func.value)
    for call in context.calls_to("numpy.array", "numpy.asarray"):
        if call.args:
            yield from _hit(context, call, call.args[0])


def _hit(context: RuleContext, call: ast.Call, source: ast.expr) -> Iterator[Hit]:
    tensor = copied_in(context, source)
    if tensor is None:
        return
    wait = wait_for_copy(context, call, tensor, known=False)
    if wait is None:
        return
    yield wait.hit(call, f"{context.shown(call)} copies to the CPU in every step and waits for it", COPY_GAIN)
