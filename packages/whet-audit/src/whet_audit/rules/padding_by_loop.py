"""DAT111 padding-by-loop: ragged rows copied into a padded tensor one by one.

Finds       `out[i, :n] = row` of a tensor in a loop inside a step, a collate function or __getitem__.
Why slow    Two or three operator calls per row, on the thread that the step waits for.
Example     for i, row in enumerate(rows): out[i, :len(row)] = torch.tensor(row)
Instead     torch.nn.utils.rnn.pad_sequence(rows, batch_first=True); a mask by arange(n) < lengths[:, None].
Gain        number of rows * some ten microseconds; little where workers do it.
Fix         none: the padding value and side must be carried over by hand.
Source      PyTorch documentation, torch.nn.utils.rnn.pad_sequence.
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.rule_context import RuleContext

CODE = "DAT111"
NAME = "padding-by-loop"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.1, "hundreds of rows per batch; nothing where workers run ahead of the step")
_MAKERS = ("torch.zeros", "torch.ones", "torch.full", "torch.empty", "torch.zeros_like", "torch.full_like")


def check(context: RuleContext) -> Iterator[Hit]:
    """Assignments to a slice of a row, whose length changes from row to row."""
    for statement in context.nodes(ast.Assign):
        target = statement.targets[0]
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Tuple):
            continue
        counter = _counter(context, statement)
        first, *rest = target.slice.elts
        if (
            not counter
            or not isinstance(first, ast.Name)
            or first.id not in counter
            or not _is_made_here(context, target)
        ):
            continue
        if not any(isinstance(part, ast.Slice) and _is_ragged(part) for part in rest):
            continue
        hot = context.hot(statement)
        if hot is None or hot.guard or context.kind(target.value) is not Kind.TENSOR:
            continue
        message = f"{context.shown(target)} is padded row by row in a Python loop"
        yield Hit(at=statement, hot=hot, message=message, confidence=Confidence.MEDIUM, gain=_GAIN)


def _counter(context: RuleContext, statement: ast.stmt) -> set[str]:
    """The names that the loop right around the statement counts with."""
    parent = context.parent(statement)
    while isinstance(parent, ast.If | ast.With):
        parent = context.parent(parent)
    if not isinstance(parent, ast.For) or parent in context.hot_paths.loops:
        return set()
    return {node.id for node in ast.walk(parent.target) if isinstance(node, ast.Name)}


def _is_ragged(part: ast.Slice) -> bool:
    """Whether the slice ends (or begins) at something computed: `:n`, `:len(x)`, `-n:`."""
    return any(end is not None and not isinstance(end, ast.Constant) for end in (part.lower, part.upper))


def _is_made_here(context: RuleContext, target: ast.Subscript) -> bool:
    """Whether the same function makes the tensor of a fixed size first."""
    if not isinstance(target.value, ast.Name):
        return False
    for binding in context.function_of(target).bindings.get(target.value.id, []):
        value = binding.value
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not context.dotted(value.func):
            value = value.func.value
        if isinstance(value, ast.Call) and (context.dotted(value.func) in _MAKERS or _is_new(value)):
            return True
    return False


def _is_new(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("new_zeros", "new_full", "new_ones", "new_empty")
