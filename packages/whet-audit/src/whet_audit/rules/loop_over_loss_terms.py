"""CMP105 loop-over-loss-terms: the loss of each position by itself, or a forward pass for each prefix of a sequence.

Finds       A loop in hot code that adds `criterion(out[:, t], y[:, t])` for each t, or that runs the model on
            `x[:, :t]` for each t (high): K forward passes where one, with a causal mask, gives all K outputs.
Why slow    K small losses are K times the kernels, forward and backward. K forwards are K times the step's work.
Example     for t in range(K): loss += criterion(model(x[:, : t + 1])[:, -1], y[:, t])
Instead     out = model(x); loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
Gain        of a loop of forwards, nearly (K - 1) / K of it; of a loop of losses, little but the launches.
Fix         unsafe, and only of a loop of forwards in its plainest form: the model must be causal.
Source      Vaswani et al. 2017, "Attention Is All You Need": teacher forcing; torch.nn.functional.cross_entropy.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.dataflow import last_name, names_in
from whet_audit.finding import Confidence, Gain, Hit, HotPath, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.one_forward import one_forward
from whet_audit.rule_context import RuleContext

CODE = "CMP105"
NAME = "loop-over-loss-terms"
PRIORITY = Priority.MEDIUM
_LOSS_GAIN = Gain(0.0, 0.1, "ten terms or more, each on small tensors")
_PREFIX_GAIN = Gain(0.3, 0.9, "four prefixes or more, a model that is causal (or is given a causal mask)")
_LOSS = re.compile(
    r"(\w*_)?(criterion|loss(_fn|_func|_function)?|cross_entropy(_loss)?|nll_loss|mse_loss|l1_loss|bce\w*)"
)


def check(context: RuleContext) -> Iterator[Hit]:
    """For-loops over a range, in hot code, with a loss or a forward pass of each index."""
    for loop in context.nodes(ast.For):
        index = _index(loop)
        if index is None or loop in context.hot_paths.loops:
            continue
        hot = context.hot(loop)
        if hot is None or hot.guard or hot.kind in (HeatKind.DATA, HeatKind.GENERATION, HeatKind.INFERENCE_CALL):
            continue
        yield from _prefix(context, loop, index, hot)
        yield from _term(context, loop, index, hot)


def _index(loop: ast.For) -> str | None:
    """The name a loop over range() counts in; None for other loops."""
    called = loop.iter
    while isinstance(called, ast.Call) and last_name(called.func) in ("tqdm", "trange", "reversed") and called.args:
        called = called.args[0]
    is_range = isinstance(called, ast.Call) and last_name(called.func) == "range"
    return loop.target.id if is_range and isinstance(loop.target, ast.Name) else None


def _prefix(context: RuleContext, loop: ast.For, index: str, hot: HotPath) -> Iterator[Hit]:
    """A forward pass on what is cut off at the index."""
    if _cut_at(loop, index) is None:
        return
    cut = _cut_names(loop, index)
    for call in ast.walk(loop):
        if not isinstance(call, ast.Call) or context.call_kind(call) is not CallKind.MODEL:
            continue
        dotted = context.value(call.func).dotted or ""
        if dotted.startswith("torch.nn.") and dotted != "torch.nn.Module":
            continue  # one layer
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(_cut_at(a, index) is not None or names_in(a) & cut for a in arguments):
            yield Hit(
                at=call,
                hot=hot,
                message=(
                    f"{context.shown(call)}: a forward pass for each prefix, for {index} in {context.shown(loop.iter)}"
                ),
                confidence=Confidence.MEDIUM,
                gain=_PREFIX_GAIN,
                priority=Priority.HIGH,
                fix=one_forward(context, loop, index),
            )
            return


def _cut_names(loop: ast.For, index: str) -> set[str]:
    """Names that the body binds to something cut off at the index."""
    found: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and (_cut_at(node.value, index) is not None or names_in(node.value) & found):
            found |= {t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    return found


def _cut_at(node: ast.AST, index: str) -> ast.Slice | None:
    """A slice from the start up to the index, as in x[:, : t + 1]."""
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Slice) or inner.upper is None or index not in names_in(inner.upper):
            continue
        if inner.lower is None or (isinstance(inner.lower, ast.Constant) and inner.lower.value == 0):
            return inner
    return None


def _term(context: RuleContext, loop: ast.For, index: str, hot: HotPath) -> Iterator[Hit]:
    """loss += criterion(out[:, t], y[:, t]), or losses.append(...) of it."""
    if hot.kind == HeatKind.INFERENCE:
        return
    for call in ast.walk(loop):
        if not isinstance(call, ast.Call) or not _LOSS.fullmatch(last_name(call.func)) or len(call.args) < 2:
            continue
        if not all(_is_at(argument, index) for argument in call.args[:2]) or not _is_summed(context, call):
            continue
        if any(isinstance(up, ast.If) for up in _between(context, call, loop)):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)}: one small loss for each {index} in {context.shown(loop.iter)}",
            confidence=Confidence.MEDIUM,
            gain=_LOSS_GAIN,
            priority=Priority.LOW,
        )


def _is_at(e: ast.expr, index: str) -> bool:
    """Whether an expression takes its part at the index out of a tensor: x[:, t], x[t]. Not of a list of outputs."""
    return any(isinstance(node, ast.Subscript) and index in names_in(node.slice) for node in ast.walk(e))


def _is_summed(context: RuleContext, call: ast.Call) -> bool:
    """Whether a running sum or a list takes the loss."""
    for up in context.ancestors(call):
        if isinstance(up, ast.AugAssign):
            return isinstance(up.op, ast.Add)
        if isinstance(up, ast.Call) and last_name(up.func) == "append":
            return True
        if isinstance(up, ast.Assign):
            target = up.targets[0]
            return isinstance(target, ast.Name) and target.id in names_in(up.value)
        if isinstance(up, ast.stmt):
            return False
    return False


def _between(context: RuleContext, node: ast.AST, loop: ast.For) -> Iterator[ast.AST]:
    for up in context.ancestors(node):
        if up is loop:
            return
        yield up
