"""SYN106 branch-on-tensor: Python decides by a tensor's values in every step, and the CPU waits for them.

Finds       `if x > 0`, `while mask.any()`, `assert torch.all(x)`, `a and b`, `not x`, of tensors, in a step loop, a
            forward pass, or what they call; tests for NaN among them.
Why slow    The branch is not taken before all kernels queued so far have run; torch.compile breaks the graph there.
Example     if torch.isnan(loss).any(): continue
Instead     torch.where or masked arithmetic, for which no branch is needed; torch._assert_async for checks; a test
            every hundred steps.
Gain        up to the share of the step that the CPU needs to queue its kernels; on a CPU little.
Fix         none: what the branch is for is not known.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Hit, Priority
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.waits import WAIT_GAIN, is_on_cpu, is_tensor_value, wait_at

CODE = "SYN106"
NAME = "branch-on-tensor"
PRIORITY = Priority.MEDIUM
_READ_ALL = ("torch.equal", "torch.allclose", "torch.is_nonzero")
_OF_NUMBERS = ("math.isnan", "math.isfinite", "math.isinf")
_REDUCTIONS = ("any", "all")
_MADE_BY = ast.Call | ast.BinOp | ast.Compare | ast.UnaryOp


def check(context: RuleContext) -> Iterator[Hit]:
    """Conditions of which a part is a tensor, and functions that read one to answer."""
    for condition in _conditions(context):
        part = _tensor_in(context, condition)
        if part is not None:
            yield from _hit(context, condition, part, is_sure=context.value(part).is_sure)
    for call in context.calls_to(*_READ_ALL, *_OF_NUMBERS):
        if call.args and is_tensor_value(context, call.args[0]):
            yield from _hit(context, call, call.args[0], is_sure=context.value(call.args[0]).is_sure)


def _hit(context: RuleContext, condition: ast.expr, tensor: ast.expr, *, is_sure: bool) -> Iterator[Hit]:
    wait = None if is_on_cpu(context, tensor) else wait_at(context, condition, is_sure=is_sure)
    if wait is not None:
        yield wait.if_often.hit(
            condition,
            f"{context.shown(condition)} is decided by a tensor: the CPU waits for the GPU in every step",
            WAIT_GAIN,
        )


def _conditions(context: RuleContext) -> Iterator[ast.expr]:
    """Every expression of which Python asks whether it is true, without `not`, `and`, `or` and bool() around it."""
    for statement in context.nodes(ast.If):
        yield from _plain(statement.test)
    for loop in context.nodes(ast.While):
        yield from _plain(loop.test)
    for claim in context.nodes(ast.Assert):
        yield from _plain(claim.test)
    for choice in context.nodes(ast.IfExp):
        yield from _plain(choice.test)
    for comprehension in context.nodes(ast.comprehension):
        for test in comprehension.ifs:
            yield from _plain(test)
    for operation in context.nodes(ast.BoolOp):
        for value in operation.values[:-1]:  # the last one is asked only where the whole is
            yield from _plain(value)
    for inverted in context.nodes(ast.UnaryOp):
        if isinstance(inverted.op, ast.Not):
            yield from _plain(inverted.operand)
    for call in context.calls("bool"):
        if isinstance(call.func, ast.Name) and len(call.args) == 1:
            yield from _plain(call.args[0])


def _plain(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _plain(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _plain(test.operand)
    elif isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "bool" and test.args:
        yield from _plain(test.args[0])
    else:
        yield test


def _tensor_in(context: RuleContext, condition: ast.expr) -> ast.expr | None:
    """The tensor that decides a condition; None where none does, or that is not sure enough."""
    if isinstance(condition, ast.Compare):
        if any(isinstance(operator, ast.Is | ast.IsNot | ast.In | ast.NotIn) for operator in condition.ops):
            return None
        sides = (condition.left, *condition.comparators)
        if any(
            isinstance(side, ast.Constant) and (side.value is None or isinstance(side.value, str)) for side in sides
        ):
            return None
        if any(_is_enumerated(context, side) for side in sides):
            return None
        return next((side for side in sides if _is_tensor_side(context, side)), None)
    if isinstance(condition, ast.Call):
        if name_of(condition) in _REDUCTIONS and isinstance(condition.func, ast.Attribute) and not condition.args:
            return condition.func.value if is_tensor_value(context, condition.func.value) else None
        return condition if is_tensor_value(context, condition) and context.value(condition).is_sure else None
    if isinstance(condition, ast.Name):
        return condition if is_tensor_value(context, condition) and _is_always_tensor(context, condition) else None
    return None


def _is_tensor_side(context: RuleContext, side: ast.expr) -> bool:
    """Whether a side of a comparison is a tensor; sums that start from a number may be numbers all along."""
    if not context.value(side).is_sure or not is_tensor_value(context, side):
        return False
    bindings = context.function_of(side).bindings.get(side.id, []) if isinstance(side, ast.Name) else []
    return not any(isinstance(binding.value, ast.Constant) for binding in bindings)


def _is_enumerated(context: RuleContext, side: ast.expr) -> bool:
    """Whether a side is a constant of torch that is no number, such as torch.per_tensor_symmetric."""
    dotted = context.dotted(side) if isinstance(side, ast.Attribute) else None
    return dotted is not None and dotted.startswith("torch.") and dotted not in ("torch.inf", "torch.nan", "torch.pi")


def _is_always_tensor(context: RuleContext, name: ast.Name) -> bool:
    """Whether a name is bound to results of tensor operations only: `if mask:` may also ask whether it is None."""
    function = context.function_of(name)
    bindings = function.bindings.get(name.id, [])
    if any(argument.arg == name.id for argument in function.arguments):
        return False
    return bool(bindings) and all(
        binding.how == "value"
        and isinstance(binding.value, _MADE_BY)
        and not binding.path
        and is_tensor_value(context, binding.value)
        and context.value(binding.value).is_sure
        for binding in bindings
    )
