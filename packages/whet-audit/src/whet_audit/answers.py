"""Functions whose results nobody differentiates, so that what they record for gradients may be left out."""

from __future__ import annotations

import re

from whet_audit.escapes import returns_tensors
from whet_audit.project_words import is_script, trains
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

_EVALUATES = re.compile(r"^_?(eval|evaluate|evaluation|valid|validate|validation|test)(_|$)")


def is_for_answers(context: RuleContext, function: Function) -> bool:
    """Whether a function hands out no tensors, evaluates over a whole loop, or is in a script that trains nothing."""
    if not returns_tensors(context, function):
        return True
    if _EVALUATES.search(function.name) and any(loop in context.hot_paths.loops for loop in function.loops):
        return True
    return is_script(context.module) and not trains(context.project, context.module)
