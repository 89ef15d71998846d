"""SYN108 nonzero-in-loop: an operation whose result's size depends on the values makes the CPU wait for that size.

Finds       nonzero, argwhere, unique, unique_consecutive, masked_select, and where with one argument, of tensors, in a
            step loop, a forward pass, or in what they call.
Why slow    The result cannot be allocated before its size is known, so the CPU waits for all kernels queued so far.
Example     rows = (labels != -100).nonzero(); loss = losses[rows].mean()
Instead     keep the shape: torch.where(labels != -100, losses, 0).sum() / (labels != -100).sum(); argmax of a one-hot
            row; torch.nonzero_static where the size is known.
Gain        up to the share of the step that the CPU needs to queue its kernels; on a CPU little.
Fix         none: what is done with the indices is not known.
Source      PyTorch documentation of torch.nonzero: "causes host-device synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Hit, Priority
from whet_audit.rule_context import RuleContext
from whet_audit.waits import WAIT_GAIN, wait_for

CODE = "SYN108"
NAME = "nonzero-in-loop"
PRIORITY = Priority.MEDIUM
_METHODS = ("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select")
_FUNCTIONS = tuple(f"torch.{name}" for name in _METHODS)
_OF_TENSORS = ("masked_select", "unique_consecutive")  # numpy and pandas have no methods of these names


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls as functions of torch and as methods of tensors."""
    for call in context.calls_to(*_FUNCTIONS):
        if call.args:
            yield from _hit(context, call, call.args[0], known=False)
    for call in context.calls_to("torch.where"):
        if len(call.args) == 1 and not call.keywords:
            yield from _hit(context, call, call.args[0], known=False)
    for call in context.calls(*_METHODS):
        if isinstance(call.func, ast.Attribute) and context.dotted(call.func) not in _FUNCTIONS:
            if isinstance(call.func.value, ast.Name) and context.value(call.func.value).dotted is not None:
                continue  # a module such as numpy
            known = call.func.attr not in _OF_TENSORS and not _is_comparison(context, call.func.value)
            yield from _hit(context, call, call.func.value, known=known)


def _is_comparison(context: RuleContext, owner: ast.expr) -> bool:
    """Whether nonzero is called on a comparison of what may be tensors: where nothing here is numpy's."""
    return isinstance(owner, ast.Compare) and "numpy" not in context.module.imports.values()


def _hit(context: RuleContext, call: ast.Call, tensor: ast.expr, *, known: bool) -> Iterator[Hit]:
    if isinstance(tensor, ast.Compare) and context.kind(tensor) is Kind.OTHER and not known:
        tensor = tensor.left
    wait = wait_for(context, call, tensor, known=known)
    if wait is not None:
        yield wait.hit(
            call, f"{context.shown(call)} has a size that depends on values: the CPU waits for the GPU", WAIT_GAIN
        )
