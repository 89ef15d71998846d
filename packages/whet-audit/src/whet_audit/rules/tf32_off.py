"""PRE104 tf32-off: float32 matrix products at full precision, off the tensor cores.

Finds       A script that trains on a GPU in float32 and never chooses the precision of products, or sets it to highest.
Why slow    TensorFloat-32 rounds the factors of a product to 10 bits of mantissa and multiplies several times faster.
Example     if __name__ == "__main__": train()
Instead     torch.set_float32_matmul_precision("high") at the start of the script.
Gain        for products in float32 on GPUs since Ampere; convolutions use TF32 already; nothing under autocast.
Fix         unsafe: products differ in the fourth digit.
Source      PyTorch documentation, torch.set_float32_matmul_precision, and "TensorFloat-32 on Ampere".
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import AddImport, Confidence, Fix, Gain, Hit, InsertBefore, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.precision import is_mixed, is_of_small_models, sets_tf32, speaks_of_half
from whet_audit.reasons import has_comment
from whet_audit.rule_context import RuleContext

CODE = "PRE104"
NAME = "tf32-off"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.4, "a GPU since Ampere, and products of float32 matrices taking most of the step")
_SETTING = 'torch.set_float32_matmul_precision("high")'


def check(context: RuleContext) -> Iterator[Hit]:
    """Settings that turn it off, then the entry of a script that has none."""
    if not context.mentions_gpu or context.module.is_test or not context.module.uses_torch:
        return
    yield from _turned_off(context)
    if not any(context.loops(HeatKind.TRAINING)) or is_mixed(context.module) or speaks_of_half(context.module):
        return
    if sets_tf32(context.project) or is_of_small_models(context.module):
        return
    entry = _entry(context)
    if entry is not None:
        at, first = entry
        message = "the script trains in float32 and never turns TF32 on"
        fix = None
        if first is not None and context.module.imports.get("torch") == "torch":
            fix = Fix("let products use TF32", False, (InsertBefore(context.span(first), _SETTING), AddImport("torch")))
        yield Hit(at=at, message=message, confidence=Confidence.LOW, gain=_GAIN, fix=fix)


def _turned_off(context: RuleContext) -> Iterator[Hit]:
    for statement in context.nodes(ast.Assign):
        target = statement.targets[0]
        if (
            isinstance(target, ast.Attribute)
            and target.attr == "allow_tf32"
            and context.constant(statement.value) is False
        ):
            dotted = context.dotted(target) or ""
            if not dotted.startswith("torch.backends") or not _is_chosen(context, statement, statement.value):
                continue
            message = f"{context.shown(target)} is set to False"
            fix = None
            if not has_comment(context.module, statement):
                fix = context.replace(statement.value, "True", "let products use TF32", safe=False)
            yield Hit(at=statement, message=message, confidence=Confidence.MEDIUM, gain=_GAIN, fix=fix)
    for call in context.calls_to("torch.set_float32_matmul_precision"):
        if (
            call.args
            and context.constant(call.args[0]) == "highest"
            and _is_chosen(context, context.statement(call), call.args[0])
        ):
            fix = None
            if not has_comment(context.module, call):
                fix = context.replace(call.args[0], '"high"', "let products use TF32", safe=False)
            message = "float32 products at the highest precision leave the tensor cores unused"
            yield Hit(at=call, message=message, confidence=Confidence.MEDIUM, gain=_GAIN, fix=fix)


def _is_chosen(context: RuleContext, statement: ast.stmt, value: ast.expr) -> bool:
    """Whether the code has this one value: no option's, no branch's, nor what a test or a context restores."""
    is_switched = any(isinstance(up, ast.If | ast.Try | ast.With) for up in context.ancestors(statement))
    return context.is_written(value) and not is_switched


def _entry(context: RuleContext) -> tuple[ast.AST, ast.stmt | None] | None:
    """Where the script begins: the guard and the first statement under it, or the first training loop at its top."""
    for statement in context.module.tree.body:
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            return statement, statement.body[0]
    loops = [loop for loop in context.loops(HeatKind.TRAINING) if context.function_of(loop) is context.module.top]
    if not loops:
        return None
    outer: ast.AST = loops[0]
    while (up := context.parent(outer)) is not context.module.tree and up is not None:
        outer = up
    return loops[0], outer if isinstance(outer, ast.stmt) else None
