"""INF106 reference-recomputed: a frozen model computes the same answers for the same data in every epoch.

Finds       a reference, teacher or frozen encoder under no_grad in a training loop that lies in a loop over epochs.
Why slow    Its weights never change and neither do its inputs, so each epoch after the first repeats the first.
Example     for epoch in range(3): for batch in loader: with torch.no_grad(): ref = ref_model(batch)
Instead     compute the reference's log-probabilities once, store them beside the samples, and read them.
Gain        the forward pass of the frozen model, in all epochs but the first; nothing with random augmentation.
Fix         none: the results need a place.
Source      TRL, DPOTrainer, `precompute_ref_log_probs`.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Gain, Hit, HotPath, Priority
from whet_audit.gradients import switch_above
from whet_audit.hot_paths import TRAINS, HeatKind
from whet_audit.rule_context import RuleContext, is_known

CODE = "INF106"
NAME = "reference-recomputed"
PRIORITY = Priority.MEDIUM
_GAIN = Gain(0.0, 0.3, "several epochs over the same inputs, without random augmentation")
_FROZEN = re.compile(
    r"(^|_|\.)(ref|reference|teacher|frozen|sft|text_encoder\w*|image_encoder|vision_tower|clip_model|feature_extractor|"
    r"vae|t5|bert_encoder)(_model|_policy|_net|_network)?$",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"(^|\.)(ref|reference)_model$")
_ON_POLICY = re.compile(r"(GRPO|PPO|RLOO|Online|Reinforce|Nash|XPO|GKD)", re.IGNORECASE)
_FOLLOWS = re.compile(r"ema|momentum|moving|target_net|update_teacher|teacher_momentum|mean_teacher", re.IGNORECASE)
_AUGMENTED = (
    "augment",
    "RandomCrop",
    "RandomResizedCrop",
    "RandomHorizontalFlip",
    "mixup",
    "ColorJitter",
    "RandAugment",
)


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of frozen models under no_grad in training loops with epochs around them, or in a framework's step."""
    for call in context.nodes(ast.Call):
        name = _frozen(context, call)
        if name is None:
            continue
        hot = context.hot(call)
        if hot is None or hot.guard or hot.kind not in TRAINS or switch_above(context.module, call) is None:
            continue
        text = context.module.text
        if _FOLLOWS.search(text) or any(word in text for word in _AUGMENTED) or _samples_anew(context):
            continue
        if not (_has_epochs(context, hot) if hot.loop_line else "precompute" not in text):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} computes the same for the same sample in every epoch",
            confidence=Confidence.LOW if "teacher" in name or "vae" in name or not hot.loop_line else Confidence.MEDIUM,
            gain=_GAIN,
        )


def _frozen(context: RuleContext, call: ast.Call) -> str | None:
    """The frozen model that a call runs, or that it gives to a function which does."""
    owner = call.func
    if isinstance(owner, ast.Attribute) and owner.attr in ("encode", "forward"):
        owner = owner.value
    elif context.call_kind(call) is not CallKind.MODEL:
        given = [argument for argument in call.args if _REFERENCE.search(ast.unparse(argument))]
        if not given or context.target(call) is None:
            return None
        owner = given[0]
    name = ast.unparse(owner)
    return name if isinstance(owner, ast.Name | ast.Attribute) and _FROZEN.search(name) else None


def _samples_anew(context: RuleContext) -> bool:
    """Whether the training loop makes its own samples, which no epoch sees twice."""
    if any(_ON_POLICY.search(cls.qualname) for cls in context.classes()):
        return True
    hots = (context.hot(call) for call in context.calls("generate"))
    return any(hot is not None and hot.kind in TRAINS and not hot.guard for hot in hots)


def _has_epochs(context: RuleContext, hot: HotPath) -> bool:
    """Whether the step loop lies in one over epochs, by its words, and of more than one."""
    loop = next((one for one in context.loops(HeatKind.TRAINING) if one.lineno == hot.loop_line), None)
    if loop is None or hot.loop_path != context.module.path:
        return False
    for up in context.ancestors(loop):
        if isinstance(up, ast.FunctionDef):
            return False
        if isinstance(up, ast.For) and "epoch" in (ast.unparse(up.target) + ast.unparse(up.iter)).lower():
            last = context.constant(up.iter.args[-1]) if isinstance(up.iter, ast.Call) and up.iter.args else None
            return not is_known(last) or last != 1
    return False
