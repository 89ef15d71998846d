"""CMP117 loop-over-parameters: gradients or weights handled one parameter at a time in every step.

Finds       In hot code, a loop or comprehension over `model.parameters()` that takes norms of gradients, clips, scales
            or updates them one by one; and the same loop in the `step` of an optimiser without a foreach form.
Why slow    Each parameter costs several small kernels, and an `.item()` in the loop a wait for the GPU besides.
Example     for p in model.parameters(): total += p.grad.norm(2).item() ** 2
Instead     torch.nn.utils.get_total_norm(grads) or clip_grad_norm_; torch._foreach_mul_, _foreach_add_, ... on lists
Gain        a few hundredths of a step with hundreds of parameters; more where each is read back.
Fix         none: what the loop does differs.
Source      torch.optim documentation, "foreach implementation"; torch.nn.utils.clip_grad_norm_.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.dataflow import last_name
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import TRAINS
from whet_audit.rule_context import RuleContext
from whet_audit.source import Class

CODE = "CMP117"
NAME = "loop-over-parameters"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.08, "a GPU and hundreds of parameters; more where each is read back")
_WORK = frozenset(
    (
        "norm add_ mul_ div_ sub_ clamp_ copy_ addcmul_ addcdiv_ lerp_ clip_ sum pow square abs normal_ uniform_ "
        "sqrt mean masked_fill_ sign item"
    ).split()
)
_OPTIMISER_WORK = frozenset("add_ mul_ div_ sub_ addcmul_ addcdiv_ lerp_ copy_ add mul div sub sqrt addcdiv".split())
_TOGETHER = re.compile(r"_foreach|multi_tensor|fused|foreach|triton|xla")


def check(context: RuleContext) -> Iterator[Hit]:
    """Loops and comprehensions over parameters in training steps, and in optimisers."""
    nodes: list[ast.For | ast.ListComp | ast.GeneratorExp] = [*context.nodes(ast.For)]
    nodes += [*context.nodes(ast.ListComp), *context.nodes(ast.GeneratorExp)]
    for node in nodes:
        loop = node if isinstance(node, ast.For) else node.generators[0]
        if not _is_over_parameters(loop.iter):
            continue
        names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        body: list[ast.AST] = [*node.body] if isinstance(node, ast.For) else [node.elt]
        in_optimiser = _is_in_optimiser(context, node)
        if in_optimiser:
            if _num_calls(body, names, _OPTIMISER_WORK) < 3 or _TOGETHER.search(
                context.source(_class_node(context, node))
            ):
                continue
        elif not _works_on_gradients(body, names):
            continue
        hot = context.hot(node)
        if (hot is None and not in_optimiser) or (hot is not None and (hot.guard or hot.kind not in TRAINS)):
            continue
        yield Hit(
            at=node,
            hot=hot,
            message=f"one parameter after the other: for {context.shown(loop.target)} in {context.shown(loop.iter)}",
            confidence=Confidence.MEDIUM,
            gain=_GAIN,
        )


def _is_over_parameters(e: ast.expr) -> bool:
    """model.parameters(), named_parameters(), group["params"], or a list named for them."""
    while isinstance(e, ast.Call) and last_name(e.func) in ("enumerate", "list", "filter", "tqdm") and e.args:
        e = e.args[-1] if last_name(e.func) == "filter" else e.args[0]
    if isinstance(e, ast.Call):
        return last_name(e.func) in ("parameters", "named_parameters", "get_parameters", "trainable_parameters")
    if isinstance(e, ast.Subscript):
        return isinstance(e.slice, ast.Constant) and e.slice.value == "params"
    return last_name(e) in ("params", "parameters", "trainable_params", "named_params", "model_params", "grads")


def _works_on_gradients(body: list[ast.AST], names: set[str]) -> bool:
    """Whether the body runs a tensor operation on the gradient of the loop's parameter, or changes it in place."""
    for call in (n for part in body for n in ast.walk(part) if isinstance(n, ast.Call)):
        if last_name(call.func) not in _WORK or not isinstance(call.func, ast.Attribute):
            continue
        touched = [call.func.value, *call.args]
        has_gradient = any(isinstance(n, ast.Attribute) and n.attr == "grad" for t in touched for n in ast.walk(t))
        if has_gradient and any(isinstance(n, ast.Name) and n.id in names for t in touched for n in ast.walk(t)):
            return True
    return False


def _num_calls(body: list[ast.AST], names: set[str], wanted: frozenset[str]) -> int:
    calls = [n for part in body for n in ast.walk(part) if isinstance(n, ast.Call)]
    return sum(isinstance(call.func, ast.Attribute) and call.func.attr in wanted for call in calls)


def _is_in_optimiser(context: RuleContext, node: ast.AST) -> bool:
    cls = context.class_of(node)
    if cls is None or context.function_of(node).name not in ("step", "_step", "update"):
        return False
    return any(isinstance(base, str) and _is_optimiser(base) for base in context.project.ancestry(cls))


def _is_optimiser(base: str) -> bool:
    return base.startswith("torch.optim.") or base.rpartition(".")[2] == "Optimizer"


def _class_node(context: RuleContext, node: ast.AST) -> ast.AST:
    cls = context.class_of(node)
    assert isinstance(cls, Class)
    return cls.node
