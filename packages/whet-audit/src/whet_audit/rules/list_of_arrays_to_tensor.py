"""DAT108 list-of-arrays-to-tensor: a tensor made from a list of numpy arrays, read number by number.

Finds       torch.tensor, torch.FloatTensor and the like of a list of numpy arrays.
Why slow    torch walks through the list as through any sequence: each number becomes a Python object first.
Example     torch.tensor([features[i] for i in batch])
Instead     torch.from_numpy(np.stack([features[i] for i in batch]))
Gain        a hundredfold of this one call for large arrays; torch itself warns of it.
Fix         wraps the list in np.array; safe where the dtype is given: else an empty list, or arrays of several types,
            would give another type.
Source      the warning of torch.tensor, "Creating a tensor from a list of numpy.ndarrays is extremely slow".
"""

import ast
from collections.abc import Iterator

from whet_audit.arrays import is_list_of_arrays
from whet_audit.finding import AddImport, Confidence, Edit, Fix, Gain, Hit, Priority, ReplaceExpression
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

CODE = "DAT108"
NAME = "list-of-arrays-to-tensor"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.2, "arrays of thousands of numbers, converted in every batch")
_TYPED = ("FloatTensor", "LongTensor", "IntTensor", "DoubleTensor", "BoolTensor", "ByteTensor", "HalfTensor", "Tensor")
_MAKERS = tuple(f"torch.{name}" for name in ("tensor", "as_tensor", *_TYPED))


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls that make a tensor of what is known to be a list of arrays, or may be one by its annotation."""
    for call in context.calls_to(*_MAKERS):
        if not call.args:
            continue
        data = call.args[0]
        hot = context.hot(call)
        priority = None if hot is not None else Priority.LOW
        if is_list_of_arrays(context, data):
            message = f"{context.shown(call)} reads a list of numpy arrays number by number"
            fix = _stacked(context, call, data)
            yield Hit(call, message, _GAIN, Confidence.HIGH, hot=hot, fix=fix, priority=priority)
        elif isinstance(data, ast.Name) and _may_be_arrays(context.function_of(data), data.id):
            message = f"{context.shown(call)}: {data.id} may be a list of numpy arrays, which is read number by number"
            yield Hit(call, message, _GAIN, Confidence.LOW, hot=hot, priority=Priority.LOW)


def _may_be_arrays(function: Function, name: str) -> bool:
    """Whether the parameter is annotated as a list or a numpy array."""
    for argument in function.arguments:
        if argument.arg == name and argument.annotation is not None:
            words = ast.unparse(argument.annotation).lower()
            return "ndarray" in words and "list" in words
    return False


def _stacked(context: RuleContext, call: ast.Call, data: ast.expr) -> Fix:
    numpy = next((local for local, full in context.module.imports.items() if full == "numpy"), None)
    source = f"{numpy or 'numpy'}.array({context.source(data)})"
    edits: list[Edit] = [ReplaceExpression(context.span(data), source)]
    if numpy is None:
        edits.append(AddImport("numpy"))
    has_dtype = context.keyword(call, "dtype") is not None or context.dotted(call.func) not in _MAKERS[:2]
    return Fix("make one array first", has_dtype, tuple(edits))
