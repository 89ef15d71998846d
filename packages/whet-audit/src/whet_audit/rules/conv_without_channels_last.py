"""CMP109 conv-without-channels-last: 2-d convolutions in half precision on memory ordered for something else.

Finds       A script that trains or runs a model of 2-d convolutions (or of torchvision) with autocast or half
            precision, and nowhere names `channels_last`.
Why slow    Tensor cores read channels last: cudnn turns every input and output around, or takes a slower kernel.
Example     model = resnet50().cuda(); with torch.autocast("cuda"): model(x)
Instead     model = resnet50().cuda().to(memory_format=torch.channels_last); x the same.
Gain        up to a fifth of the step for large convolutions; nothing, or a loss, with few channels.
Fix         none: model and inputs change together.
Source      PyTorch tutorial "Channels Last Memory Format in PyTorch".
"""

import ast
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.project_words import has_convolutions, is_script, says, uses_half
from whet_audit.rule_context import RuleContext

CODE = "CMP109"
NAME = "conv-without-channels-last"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.2, "large 2-d convolutions in half precision on tensor cores")


def check(context: RuleContext) -> Iterator[Hit]:
    """The first call of the model in a step loop."""
    project, module = context.project, context.module
    if not is_script(module) or not has_convolutions(project, module) or not uses_half(project, module):
        return
    if says(project, module, "channels_last", "memory_format", "channels_last_3d"):
        return
    for loop in context.loops(HeatKind.TRAINING, HeatKind.INFERENCE, HeatKind.DENOISING):
        for call in ast.walk(loop):
            if isinstance(call, ast.Call) and context.call_kind(call) is CallKind.MODEL:
                yield Hit(
                    at=call,
                    hot=context.hot(call),
                    message=f"{context.shown(call)}: 2-d convolutions in half precision, but never channels_last",
                    confidence=Confidence.MEDIUM,
                    gain=_GAIN,
                )
                return
