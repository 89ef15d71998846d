"""DST104 collective-in-python-loop: many small collectives where one would do.

Finds       `all_reduce`, `broadcast` and their like once per parameter or metric in a Python loop of a step, several
            of them side by side in a step, and `barrier()` in every step.
Why slow    Each one costs a launch and a trip over the network, tens of microseconds whatever its size, and barriers
            make all ranks wait for the slowest.
Example     for p in model.parameters(): dist.all_reduce(p.grad)
Instead     DistributedDataParallel, or one all_reduce of `torch._utils._flatten_dense_tensors(grads)`
Gain        up to a tenth or two of a step with hundreds of parameters; nothing in one process.
Fix         none.
Source      PyTorch, "Distributed communication package"; Li et al. 2020, "PyTorch Distributed", on bucketing.
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.growth import has_few_rounds, loop_around
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext

CODE = "DST104"
NAME = "collective-in-python-loop"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.2, "hundreds of parameters or several nodes; nothing in one process")
_REDUCES = ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter")
_MOST = 2  # collectives side by side in a step that are not worth a word


def check(context: RuleContext) -> Iterator[Hit]:
    """Collectives of torch.distributed in hot loops, or on gradients in any loop."""
    side_by_side: dict[ast.AST, list[ast.Call]] = {}
    for call in context.calls_to(*(f"torch.distributed.{name}" for name in _REDUCES)):
        loop = loop_around(context, call)
        hot = context.hot(call)
        if hot is not None and (hot.guard or hot.kind == HeatKind.DATA):
            continue
        is_inner = loop is not None and loop not in context.hot_paths.loops
        if loop is not None and is_inner and not _is_over_ranks(context, loop) and not has_few_rounds(context, loop):
            if hot is None and not _is_gradient(call):
                continue
            what = context.shown(loop.test if isinstance(loop, ast.While) else loop.iter)
            yield Hit(
                at=call,
                hot=hot,
                message=f"{context.shown(call)} is a trip over the network for each of {what}",
                confidence=Confidence.MEDIUM,
                gain=_GAIN,
            )
        elif hot is not None and not is_inner and hot.kind != HeatKind.FORWARD:
            side_by_side.setdefault(_block(context, call), []).append(call)
    for calls in side_by_side.values():
        if len(calls) > _MOST:
            yield _several(context, calls)
    yield from _barriers(context)


def _several(context: RuleContext, calls: list[ast.Call]) -> Hit:
    first = min(calls, key=lambda call: call.lineno)
    return Hit(
        at=first,
        hot=context.hot(first),
        message=f"{len(calls)} collectives one after the other in each step, from {context.shown(first)} on",
        confidence=Confidence.MEDIUM,
        gain=_GAIN,
        priority=Priority.LOW,
    )


def _barriers(context: RuleContext) -> Iterator[Hit]:
    for call in context.calls_to("torch.distributed.barrier"):
        hot = context.hot(call)
        if hot is None or hot.guard or hot.kind not in (HeatKind.TRAINING, HeatKind.TRAINING_STEP):
            continue
        if isinstance(context.parent(context.statement(call)), ast.If):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} makes all ranks wait for the slowest in every step",
            confidence=Confidence.MEDIUM,
            gain=_GAIN,
        )


def _block(context: RuleContext, call: ast.Call) -> ast.AST:
    return loop_around(context, call) or context.function_of(call).node


def _is_over_ranks(context: RuleContext, loop: ast.AST) -> bool:
    words = context.source(loop.iter).lower() if isinstance(loop, ast.For) else ""
    return isinstance(loop, ast.While) or any(word in words for word in ("rank", "world", "group", "shard", "epoch"))


def _is_gradient(call: ast.Call) -> bool:
    return bool(call.args) and ".grad" in ast.unparse(call.args[0])
