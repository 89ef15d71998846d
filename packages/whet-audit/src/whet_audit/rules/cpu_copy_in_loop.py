"""SYN102 cpu-copy-in-loop: a tensor is copied to the CPU in every step, and the CPU waits for it.

Finds       `x.cpu()` and `x.to("cpu")` without `non_blocking`, in a step loop, a forward pass, or in what they call.
Why slow    The copy starts when all kernels queued so far have run, and the CPU queues nothing until it ends.
Example     for x, y in loader: ...; outputs.append(model(x).cpu())
Instead     outputs.append(model(x).detach()), and one torch.cat(outputs).cpu() after the loop or every few steps.
Gain        the time of the copy and up to the share of the step that the CPU needs to queue its kernels.
Fix         none: where the values are needed next is not known.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Hit, Priority
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.waits import COPY_GAIN, chain, is_checked, to_cpu, wait_for_copy

CODE = "SYN102"
NAME = "cpu-copy-in-loop"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_READS = frozenset("numpy tolist item".split())  # other rules report these
_NEEDS_CPU = frozenset("pack_padded_sequence save print linear_sum_assignment".split())


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of cpu() and to("cpu") on tensors, but for those whose values are read at once."""
    for call in context.calls("cpu", "to"):
        tensor = to_cpu(context, call)
        if tensor is None or context.keyword(call, "non_blocking") or context.kind(tensor) is Kind.MODEL:
            continue
        if _is_read(context, call) or _is_needed(context, call):
            continue
        # Only tensors have `detach`, so what was detached is one, whatever it was called.
        is_detached = any(name_of(link) == "detach" for link in chain(tensor)[1] if isinstance(link, ast.Call))
        wait = wait_for_copy(context, call, tensor, known=not (is_detached or is_checked(context, call)))
        if wait is None:
            continue
        yield wait.hit(call, f"{context.shown(call)} copies to the CPU in every step and waits for it", COPY_GAIN)


def _is_read(context: RuleContext, call: ast.Call) -> bool:
    """Whether the chain goes on to numpy(), tolist() or item(), or to nothing."""
    if isinstance(context.parent(call), ast.Expr):
        return True  # the copy is not used; mostly it was on the CPU before
    node: ast.AST | None = call
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        up = context.parent(node)
        if isinstance(up, ast.Attribute) and up.attr in _READS:
            return True
        if isinstance(up, ast.Call) and up.func is not node:
            return isinstance(up.func, ast.Name) and up.func.id in ("float", "int", "bool", "list")
        if isinstance(up, ast.Subscript) and up.value is not node:
            return False
        node = up
    return False


def _is_needed(context: RuleContext, call: ast.Call) -> bool:
    """Whether what takes the copy works on the CPU alone."""
    return any(isinstance(up, ast.Call) and name_of(up) in _NEEDS_CPU for up in context.ancestors(call))
