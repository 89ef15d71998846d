"""CMP112 cudnn-benchmark-off: convolutions by a kernel that cudnn picked by rule, not by trying.

Finds       `torch.backends.cudnn.benchmark = False` without a word on seeds or determinism around it; and a script that
            trains 2-d convolutions on CUDA and never touches torch.backends.cudnn.
Why slow    For fixed shapes, trying the kernels once and keeping the best may find a faster one.
Example     torch.backends.cudnn.benchmark = False
Instead     torch.backends.cudnn.benchmark = True
Gain        0 to 10% with fixed shapes; a loss where shapes change all the time. Nothing on a CPU.
Fix         unsafe: another kernel rounds in another order, and may not be the same in each run.
Source      PyTorch performance tuning guide, "Enable cuDNN auto-tuner".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.dataflow import last_name
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.project_words import has_convolutions, is_script, says
from whet_audit.reasons import has_comment
from whet_audit.rule_context import RuleContext

CODE = "CMP112"
NAME = "cudnn-benchmark-off"
PRIORITY = Priority.LOW
PREVIEW = True
_GAIN = Gain(0.0, 0.1, "2-d convolutions of fixed shapes on a GPU")
_REASON = re.compile(r"seed|determin|reproduc", re.I)
_VARIABLE = ("interpolate", "multi_scale", "multiscale", "GeneralizedRCNN", "detection", "compile", "Trainer")


def check(context: RuleContext) -> Iterator[Hit]:
    """Assignments that turn it off, else the training loop of a script that leaves it off."""
    is_set = False
    for assignment in context.nodes(ast.Assign):
        target = assignment.targets[0]
        if not isinstance(target, ast.Attribute) or target.attr != "benchmark" or last_name(target.value) != "cudnn":
            continue
        is_set = True
        value = assignment.value
        if context.is_written(value) and context.constant(value) is False and not _has_reason(context, assignment):
            yield Hit(
                at=assignment,
                message=f"{context.shown(assignment)}: cudnn takes a kernel by rule",
                confidence=Confidence.MEDIUM,
                gain=_GAIN,
                fix=None
                if has_comment(context.module, assignment)
                else context.replace(value, "True", "let cudnn try its kernels", safe=False),
            )
    if is_set or not is_script(context.module) or says(context.project, context.module, "cudnn", *_VARIABLE):
        return
    if not has_convolutions(context.project, context.module) or "cuda" not in context.module.text:
        return
    for loop in context.loops(HeatKind.TRAINING):
        yield Hit(
            at=loop,
            hot=context.hot(loop.body[0]),
            message="convolutions are trained on CUDA, and cudnn never may try its kernels",
            confidence=Confidence.LOW,
            gain=_GAIN,
        )
        return


def _has_reason(context: RuleContext, assignment: ast.Assign) -> bool:
    """Whether the lines around say why: a seed, determinism."""
    lines = context.module.text.splitlines()
    near = lines[max(0, assignment.lineno - 8) : assignment.lineno + 6]
    return _REASON.search("\n".join([*near, context.function_of(assignment).name])) is not None
