"""Rewrites option defaults so that a step is one batch of N samples instead of N batches of one.

Where gradients are accumulated over N micro-batches of one sample, one batch of N samples with no accumulation takes
the same samples to the same optimiser step: the mean of N gradients, up to rounding. Layers that look across the batch
(batch normalisation) and random draws (dropout) do differ.
"""

from __future__ import annotations

import ast
import re

from whet_audit.constants import Default
from whet_audit.finding import Edit, Fix, ReplaceExpression
from whet_audit.rule_context import RuleContext

_ACCUMULATION = re.compile(r"(\w*_)?(grad(ient)?s?_?)?acc(um)?(ulat(e|ion))?(_(steps?|iters?|grad(s|ients)?|batches))?")
_LARGEST = 64  # samples; more may not fit


def one_batch(context: RuleContext, batch_size: Default) -> Fix | None:
    """The fix for an option of batch size 1, where the same file has one option of accumulation with a default."""
    found = [
        default
        for name, defaults in context.constants.options.items()
        if _ACCUMULATION.fullmatch(name)
        for default in defaults
        if default.module is context.module
    ]
    if len(found) != 1 or not isinstance(found[0].node, ast.Constant) or not isinstance(batch_size.node, ast.Constant):
        return None
    times = found[0].node.value
    if not isinstance(times, int) or not 1 < times <= _LARGEST:
        return None
    edits: tuple[Edit, ...] = (
        ReplaceExpression(context.span(batch_size.node), str(times)),
        ReplaceExpression(context.span(found[0].node), "1"),
    )
    return Fix(f"one batch of {times} instead of {times} batches of one to an optimiser step", False, edits)
