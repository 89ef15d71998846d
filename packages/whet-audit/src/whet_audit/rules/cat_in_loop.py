"""MEM103 cat-in-loop: a tensor or an array grows by concatenation in every round of a loop.

Finds       `x = torch.cat([x, y])`, and numpy's concatenate, vstack, hstack and append, of what was there before.
Why slow    Every round allocates and copies all that has been gathered so far: time grows with their square.
Example     for batch in loader: out = torch.cat([out, model(batch)])
Instead     parts.append(model(batch)) in the loop; out = torch.cat(parts) once after it.
Gain        from nothing for tens of rounds to most of the loop for thousands; twice the memory at its peak goes too.
Fix         none: the list needs a place before the loop and one after it.
Source      numpy.append, "Appending to an array"; torch.cat.
"""

import ast
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.growth import Growth, growths, reads
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext

CODE = "MEM103"
NAME = "cat-in-loop"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.3, "hundreds of rounds or more; nothing for a few")
_TOKEN_GAIN = Gain(0.0, 0.02, "a row of token numbers; next to nothing beside the model")

_OF_DICT = (".items()", ".keys()", ".values()")


def check(context: RuleContext) -> Iterator[Hit]:
    """Growths over the rounds of a loop, unless the loop needs all of it in each round."""
    for growth in growths(context):
        hot = context.hot(growth.call)
        if hot is not None and hot.guard:
            continue
        if hot is not None and hot.kind == HeatKind.FORWARD and "self." in ast.unparse(growth.loop).partition("\n")[0]:
            continue  # over layers, of which there are few
        if hot is None and isinstance(growth.loop, ast.For) and ast.unparse(growth.loop.iter).endswith(_OF_DICT):
            continue  # over a dict's columns, of which there are few
        is_generation = _picks_tokens(context, growth)
        is_read = bool(reads(growth.loop, growth.name, growth.call))
        if is_read and not is_generation:
            continue  # dense connections, growing contexts: the whole of it is wanted
        words = ast.unparse(growth.loop.test) if isinstance(growth.loop, ast.While) else context.shown(growth.loop.iter)
        yield Hit(
            at=growth.call,
            hot=hot,
            message=f"{growth.name} is copied whole in every round over {words} to make it longer",
            confidence=Confidence.HIGH if hot is not None and not is_generation else Confidence.MEDIUM,
            gain=_TOKEN_GAIN if is_generation else _GAIN,
            priority=Priority.LOW if hot is None or is_generation else None,
        )


def _picks_tokens(context: RuleContext, growth: Growth) -> bool:
    calls = (node for node in ast.walk(growth.loop) if isinstance(node, ast.Call))
    return any(context.call_kind(call) is CallKind.PICK for call in calls)
