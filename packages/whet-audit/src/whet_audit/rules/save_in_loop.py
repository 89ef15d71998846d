"""MEM109 save-in-loop: a checkpoint is written in every training step.

Finds       `torch.save`, `save_pretrained`, `save_state` and `save_checkpoint` in a training loop under no condition.
Why slow    All weights go to the CPU, through pickle and to the disk, while the GPU waits: seconds for 1 GB.
Example     for batch in loader: ...; optimizer.step(); torch.save(model.state_dict(), path)
Instead     if step % 1000 == 0: torch.save(model.state_dict(), path)
Gain        the time of a save over the time of a step: mostly most of it.
Fix         none: how often is a decision.
Source      PyTorch, "Saving and loading models".
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.processes import is_rank_test
from whet_audit.rule_context import RuleContext

CODE = "MEM109"
NAME = "save-in-loop"
PRIORITY = Priority.HIGH
PREVIEW = True
_GAIN = Gain(0.1, 0.8, "a save takes as long as several steps")


def check(context: RuleContext) -> Iterator[Hit]:
    """Saves that every step of a training loop makes."""
    calls = [*context.calls_to("torch.save", "safetensors.torch.save_file", "torch.distributed.checkpoint.save")]
    calls += [c for c in context.calls("save_pretrained") if isinstance(c.func, ast.Attribute)]
    calls += [c for c in context.calls("save_state", "save_checkpoint") if isinstance(c.func, ast.Attribute)]
    for call in calls:
        hot = context.hot(call)
        if hot is None or hot.guard or hot.kind != HeatKind.TRAINING or _is_conditional(context, call) or hot.via:
            continue
        if isinstance(call.func, ast.Attribute) and context.kind(call.func.value) is Kind.TOKENIZER:
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} writes a checkpoint in every step",
            confidence=Confidence.HIGH,
            gain=_GAIN,
        )


def _is_conditional(context: RuleContext, call: ast.Call) -> bool:
    """Whether a condition other than a rank's stands between the loop and the save."""
    child: ast.AST = call
    for up in context.ancestors(call):
        if up in context.hot_paths.loops or isinstance(up, ast.FunctionDef):
            return False
        if isinstance(up, ast.If | ast.Try | ast.IfExp) and not (
            isinstance(up, ast.If) and child in up.body and is_rank_test(context, up.test)
        ):
            return True
        child = up
    return False
