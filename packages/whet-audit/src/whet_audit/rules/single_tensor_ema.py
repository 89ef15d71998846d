"""CMP108 single-tensor-ema: a moving average of the weights, one parameter after the other.

Finds       `for p, q in zip(ema.parameters(), model.parameters())` and loops over state dicts, whose body mixes the two
            in place (mul_, add_, lerp_, sub_, copy_ of a mixture), in hot code or in a class or function for averages.
Why slow    Two or three kernels for each parameter, each too small to fill a GPU, in every step.
Example     for p, q in zip(ema.parameters(), model.parameters()): p.mul_(d).add_(q, alpha=1 - d)
Instead     torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - d)
Gain        a few hundredths of a step on a GPU, with hundreds of parameters; little on a CPU.
Fix         none: buffers and frozen parameters are often treated apart.
Source      torch.optim.swa_utils.get_ema_multi_avg_fn, which does the same.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.dataflow import last_name, names_in
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.project import root_name
from whet_audit.rule_context import RuleContext

CODE = "CMP108"
NAME = "single-tensor-ema"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.05, "a GPU, hundreds of parameters, an update in every step")
_AVERAGE = re.compile(r"ema|average|averag|momentum|moving|polyak|soft_?update|target|mean_?teacher|shadow|swa", re.I)
_COLLECTIONS = re.compile(r"(\w+_)?(params?|parameters|weights)(_\w+)?")


def check(context: RuleContext) -> Iterator[Hit]:
    """For-loops over two sets of parameters, or over one state dict, that mix in place."""
    for loop in context.nodes(ast.For):
        if not _is_over_parameters(loop) or "_foreach" in context.source(context.function_of(loop).node):
            continue
        if not _mixes(loop):
            continue
        hot = context.hot(loop)
        if hot is not None and hot.guard:
            continue
        if hot is None and not _is_for_averages(context, loop):
            continue
        yield Hit(
            at=loop,
            hot=hot,
            message=f"averaged one by one: for {context.shown(loop.target)} in {context.shown(loop.iter)}",
            confidence=Confidence.HIGH if hot is not None else Confidence.MEDIUM,
            gain=_GAIN,
        )


def _is_over_parameters(loop: ast.For) -> bool:
    """zip of two sets of parameters, or the items of a state dict."""
    e = loop.iter
    if not isinstance(e, ast.Call):
        return False
    if last_name(e.func) == "zip" and len(e.args) >= 2:
        return all(_is_collection(argument) for argument in e.args[:2])
    return last_name(e.func) in ("items", "values", "named_parameters") and _is_collection(e)


def _is_collection(e: ast.expr) -> bool:
    while isinstance(e, ast.Call):
        if last_name(e.func) in ("parameters", "named_parameters", "state_dict", "buffers", "named_buffers"):
            return True
        if last_name(e.func) in ("values", "items") and isinstance(e.func, ast.Attribute):
            e = e.func.value
        elif last_name(e.func) in ("list", "tuple") and e.args:
            e = e.args[0]
        else:
            return False
    return _COLLECTIONS.fullmatch(last_name(e)) is not None


def _mixes(loop: ast.For) -> bool:
    """Whether the body makes one tensor a weighted sum of itself and another, in place."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult) and root_name(node.target) in names:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = _owner(node.func.value)
            if node.func.attr in ("mul_", "lerp_", "sub_") and owner & names and not _is_of_gradient(node.func.value):
                return node.func.attr == "lerp_" or bool(names_in(node) & names)
            if node.func.attr == "copy_" and node.args and _is_mixture(node.args[0], names):
                return True
        if isinstance(node, ast.Assign) and _is_mixture(node.value, names):
            target = node.targets[0]
            if isinstance(target, ast.Attribute | ast.Subscript) and not _is_of_gradient(target):
                return True
    return False


def _is_mixture(e: ast.expr, names: set[str]) -> bool:
    """a * x + b * y of the loop's tensors, or a call such as self.update_average(old, new)."""
    products = [n for n in ast.walk(e) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)]
    sums = [n for n in ast.walk(e) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add | ast.Sub)]
    if products and sums:
        return bool(names_in(e) & names)
    is_call = isinstance(e, ast.Call) and re.search(r"update|average|ema|lerp", last_name(e.func)) is not None
    return is_call and bool(names_in(e) & names)


def _owner(e: ast.expr) -> set[str]:
    return names_in(e)


def _is_of_gradient(e: ast.expr) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(e))


def _is_for_averages(context: RuleContext, loop: ast.For) -> bool:
    """Whether the names around say that this runs with each step of training."""
    function, cls = context.function_of(loop), context.class_of(loop)
    names = [function.name, cls.qualname if cls is not None else "", context.source(loop.iter)]
    return any(_AVERAGE.search(name) for name in names) and not re.search(
        r"init|copy|load|store|merge|reset", function.name
    )
