"""SYN107 builtin-on-tensor: Python itself needs the number in a tensor, and the CPU waits for it.

Finds       `max(1, x)` and `min(x, 1)`, `any(x)`, `all(x)` and `max(x)` over a tensor, `range(x)`,
            `torch.arange(x)` and other factories with a tensor as a size, `y[:x]`, and torch.tensor([x, y]) of tensors.
Why slow    Each hides an `.item()`: the value is not there before all kernels queued so far have run.
Example     loss = loss_sum / max(1, mask.sum())
Instead     loss = loss_sum / mask.sum().clamp(min=1); x.max(), torch.stack([x, y]); sizes kept as numbers.
Gain        up to the share of the step that the CPU needs to queue its kernels; nothing on a CPU.
Fix         unsafe, and only of what a tensor is divided by (or the like): max(1, x) becomes x.clamp(min=1), which may
            be a tensor where it was a number before.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Fix, Hit, Priority
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.waits import LIBRARY, WAIT_GAIN, is_on_cpu, is_tensor_value, wait_for

CODE = "SYN107"
NAME = "builtin-on-tensor"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_COMPARES = ("max", "min")
_REDUCTIONS = ("sum", "mean", "max", "min", "amax", "amin", "norm")
_READS_ALL = ("any", "all", "max", "min", "sorted")
_SIZED = ("torch.arange", "torch.zeros", "torch.ones", "torch.empty", "torch.randperm", "torch.eye")


def check(context: RuleContext) -> Iterator[Hit]:
    """Builtins, sizes, bounds of slices and lists of numbers that are given tensors."""
    for call in context.calls(*_COMPARES, "any", "all", "sorted", "range"):
        if isinstance(call.func, ast.Name) and context.target(call) is None:
            yield from _of_builtin(context, call)
    for call in context.calls_to(*_SIZED):
        for size in call.args:
            yield from _hit(context, call, size)
    for call in context.calls_to("torch.tensor", "torch.as_tensor", "torch.FloatTensor", "torch.LongTensor"):
        if call.args:
            yield from _of_list(context, call, call.args[0])
    for part in context.nodes(ast.Slice):
        for bound in (part.lower, part.upper, part.step):
            if bound is not None:
                yield from _hit(context, bound, bound)


def _of_builtin(context: RuleContext, call: ast.Call) -> Iterator[Hit]:
    name = name_of(call)
    if name in _COMPARES and len(call.args) > 1:
        for argument in call.args:
            yield from _hit(context, call, argument, _clamped(context, call))
    elif name == "range":
        for argument in call.args:
            yield from _hit(context, call, argument)
    elif name in _READS_ALL and len(call.args) == 1 and not isinstance(call.args[0], ast.GeneratorExp):
        yield from _hit(context, call, call.args[0])


def _of_list(context: RuleContext, call: ast.Call, data: ast.expr) -> Iterator[Hit]:
    """A tensor of a list of tensors reads them one by one; of one tensor it copies without waiting."""
    value = context.value(data)
    element = value.element
    if value.kind is not Kind.LIST or element is None or element.kind is not Kind.TENSOR or not element.is_sure:
        return
    if element.device == "cpu":
        return
    inner = data.elt if isinstance(data, ast.ListComp) else data.elts[0] if isinstance(data, ast.List) else None
    if inner is not None:
        yield from _hit(context, call, inner)


def _hit(context: RuleContext, at: ast.expr, tensor: ast.expr, fix: Fix | None = None) -> Iterator[Hit]:
    is_reduced = isinstance(tensor, ast.Call) and name_of(tensor) in _REDUCTIONS
    if (
        not is_tensor_value(context, tensor)
        or not (context.value(tensor).is_sure or is_reduced)
        or is_on_cpu(context, tensor)
    ):
        return
    if fix is None and isinstance(tensor, ast.Name) and _is_bare_argument(context, tensor):
        return  # sizes are given to forward too
    wait = wait_for(context, at, tensor)
    if wait is not None and (wait.hot.kind != LIBRARY or fix is not None):
        yield wait.hit(
            at,
            f"{context.shown(at)} needs the number in {context.shown(tensor)}: the CPU waits for the GPU",
            WAIT_GAIN,
            fix=fix,
        )


def _is_bare_argument(context: RuleContext, name: ast.Name) -> bool:
    """Whether a name is an argument without annotation that nothing else is bound to."""
    function = context.function_of(name)
    given = [argument for argument in function.arguments if argument.arg == name.id]
    return bool(given) and given[0].annotation is None and name.id not in function.bindings


def _clamped(context: RuleContext, call: ast.Call) -> Fix | None:
    """For one tensor and one literal number, whatever their order."""
    if len(call.args) != 2 or call.keywords:
        return None
    numbers = [a for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, int | float)]
    tensors = [a for a in call.args if is_tensor_value(context, a)]
    if len(numbers) != 1 or len(tensors) != 1 or tensors[0] is numbers[0]:
        return None
    bound = "min" if name_of(call) == "max" else "max"
    parent = context.parent(call)
    others = (parent.left, parent.right) if isinstance(parent, ast.BinOp) else ()
    if not isinstance(tensors[0], ast.Call) or not any(
        o is not call and context.is_tensor(o, surely=True) for o in others
    ):
        return None  # what else it goes to may need a number
    source = context.operand(tensors[0])
    return context.replace(
        call, f"{source}.clamp({bound}={context.source(numbers[0])})", "clamp on the GPU", safe=False
    )
