"""DAT110 quadratic-list: a list or array that is copied whole for each element it grows by.

Finds       `x.insert(0, v)`, `x.pop(0)`, `x = x + [v]`, `x = np.append(x, v)` and `x = np.concatenate([x, v])` in a
            loop that is a step loop, or runs in a step.
Why slow    Each turn moves all that is there already: n turns cost n * n / 2.
Example     for r in rewards[::-1]: R = r + gamma * R; returns.insert(0, R)
Instead     Append, and reverse or concatenate once after the loop; collections.deque to take from the front.
Gain        nothing for tens of elements, most of the loop for tens of thousands.
Fix         none: the list may be read inside the loop.
Source      Python wiki, "TimeComplexity"; numpy documentation, numpy.append.
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Gain, Hit, HotPath, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext

CODE = "DAT110"
NAME = "quadratic-list"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.1, "thousands of elements; nothing for a few")
_GROWS = ("numpy.append", "numpy.concatenate", "numpy.vstack", "numpy.hstack", "numpy.row_stack", "numpy.insert")
_LOOPS = (ast.For, ast.While)
_FEW = ("layer", "level", "block", "feature", "module", "dim", "shape", "depth", "stage")


def check(context: RuleContext) -> Iterator[Hit]:
    """List methods that move everything, sums of lists, and numpy's growing."""
    if not context.module.uses_torch:
        return
    for call in context.calls("insert", "pop"):
        if _moves_all(context, call):
            yield from _hit(context, call, "moves the whole list")
    for statement in context.nodes(ast.Assign):
        if len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name | ast.Attribute):
            continue
        value = statement.value
        if not isinstance(value, ast.Call | ast.BinOp) or _loop(context, statement) is None:
            continue
        if isinstance(value, ast.Call) and context.dotted(value.func) not in _GROWS:
            continue
        name = ast.unparse(statement.targets[0])
        if _is_made_in_loop(context, statement, name):
            continue
        if isinstance(value, ast.Call) and _contains(value, name):
            yield from _hit(context, value, f"copies all of {name}", Priority.MEDIUM)
        elif _adds_list(value, name):
            yield from _hit(context, value, f"copies all of {name}")


def _moves_all(context: RuleContext, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or not call.args or not _is_zero(call.args[0]):
        return False
    owner = call.func.value
    if call.func.attr == "insert" and len(call.args) == 2:
        is_path = ast.unparse(owner).endswith("sys.path")
        return not is_path and context.kind(owner) in (Kind.LIST, Kind.UNKNOWN) and not _is_short_loop(context, call)
    return len(call.args) == 1 and context.kind(owner) is Kind.LIST and not call.keywords and _is_drained(context, call)


def _is_zero(e: ast.expr) -> bool:
    return isinstance(e, ast.Constant) and e.value == 0 and not isinstance(e.value, bool)


def _is_drained(context: RuleContext, call: ast.Call) -> bool:
    """Whether a loop inside the step takes from the front: one pop per step of a short queue costs nothing."""
    loop = _loop(context, call)
    return isinstance(loop, ast.While) and loop not in context.hot_paths.loops


def _is_short_loop(context: RuleContext, call: ast.Call) -> bool:
    """Whether the loop runs over layers, sizes or a range: of those there are few, mostly."""
    loop = _loop(context, call)
    if not isinstance(loop, ast.For):
        return False
    words = context.source(loop.iter).lower()
    is_range = "range(" in words and not any(word in words for word in ("len(", "reversed", "-1, -1"))
    return is_range or any(word in words for word in _FEW)


def _contains(call: ast.Call, name: str) -> bool:
    """Whether the array itself is among what is put together."""
    first = call.args[0] if call.args else None
    parts = first.elts if isinstance(first, ast.Tuple | ast.List) else [first]
    return any(part is not None and ast.unparse(part) == name for part in parts)


def _adds_list(value: ast.expr, name: str) -> bool:
    is_sum = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and isinstance(value.right, ast.List)
    return is_sum and isinstance(value, ast.BinOp) and ast.unparse(value.left) == name


def _is_made_in_loop(context: RuleContext, statement: ast.stmt, name: str) -> bool:
    """Whether the list begins anew in each turn of the innermost loop, so that it never grows."""
    loop = _loop(context, statement)
    if loop is None:
        return True
    for binding in context.function_of(statement).bindings.get(name, []):
        is_other = binding.node is loop or (
            binding.node is not statement
            and binding.how in ("value", "item")
            and loop in context.ancestors(binding.node)
        )
        if is_other and not isinstance(
            context.parent(binding.node), ast.If
        ):  # `if x is None: x = first` is a beginning
            return True
    return False


def _loop(context: RuleContext, node: ast.AST) -> ast.For | ast.While | None:
    for up in context.ancestors(node):
        if isinstance(up, _LOOPS):
            return up
        if up in context.module.function_of_node:
            return None
    return None


def _hit(context: RuleContext, at: ast.expr, what: str, priority: Priority | None = None) -> Iterator[Hit]:
    hot = context.hot(at)
    loop = _loop(context, at)
    if hot is None or hot.guard or loop is None or not _matters(hot):
        return
    message = f"{context.shown(at)} {what} in each turn of the loop at line {loop.lineno}"
    yield Hit(at=at, hot=hot, message=message, confidence=Confidence.MEDIUM, priority=priority, gain=_GAIN)


def _matters(hot: HotPath) -> bool:
    return HeatKind(hot.kind) is not HeatKind.FORWARD
