"""DAT106 batch-size-one: training on one sample per step, by default.

Finds       A batch size of 1: the default of an option, of a DataLoader that is given none, or a constant; and a
            training loop that slices out `x[i:i + 1]`.
Why slow    Each kernel has too little to do: launching it and reading the weights take the time.
Example     parser.add_argument("--batch_size", type=int, default=1)
Instead     As many samples as memory allows, with the learning rate set for it.
Gain        large per sample until the device is busy; the time of one step grows.
Fix         unsafe, and only beside an option of gradient accumulation: one batch of N instead of N batches of one.
            Without it a larger batch changes training, and is for you to choose.
Source      PyTorch performance tuning guide; NVIDIA deep learning performance guide, "Choosing the batch size".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.loader_setup import Loader, loaders
from whet_audit.one_batch import one_batch
from whet_audit.rule_context import RuleContext, is_known

CODE = "DAT106"
NAME = "batch-size-one"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.1, 0.8, "per sample, where one sample does not fill the device; memory must allow more")
_OPTION = re.compile(r"(\w*_)?(micro_?|mini_?)?batch_?size(_per_\w+)?|bs|bsz|micro_batch|minibatch")
_NOT_TRAINING = re.compile(
    r"(^|_)(eval|val|valid|validation|test|infer|inference|pred|predict|gen|generate|sample)(_|$)"
)


def check(context: RuleContext) -> Iterator[Hit]:
    """Options, then loaders, then loops."""
    if context.module.is_test:
        return
    yield from _options(context)
    for loader in loaders(context):
        yield from _loader(context, loader)
    yield from _slices(context)


def _options(context: RuleContext) -> Iterator[Hit]:
    for name, defaults in context.constants.options.items():
        if not _OPTION.fullmatch(name) or _NOT_TRAINING.search(name):
            continue
        for default in defaults:
            if default.module is context.module and _is_one(context.constant(default.node)) and _trains(context):
                message = f"{default.option} is 1 by default: one sample per step"
                fix = one_batch(context, default) if any(context.loops(HeatKind.TRAINING)) else None
                yield Hit(at=default.call, message=message, confidence=Confidence.MEDIUM, gain=_GAIN, fix=fix)
    for loop in context.loops(HeatKind.TRAINING):
        function = context.function_of(loop)
        for argument in function.arguments:
            default_value = function.default_of(argument.arg)
            if (
                _OPTION.fullmatch(argument.arg)
                and default_value is not None
                and _is_one(context.constant(default_value))
            ):
                message = f"{argument.arg} of {function.name} is 1 by default: one sample per step"
                yield Hit(at=argument, message=message, confidence=Confidence.MEDIUM, gain=_GAIN)


def _loader(context: RuleContext, loader: Loader) -> Iterator[Hit]:
    if "batch_sampler" in loader.arguments or not loader.is_complete:
        return
    size = loader.arguments.get("batch_size")
    collate = loader.arguments.get("collate_fn")
    if size is None and collate is not None:
        return  # the dataset may give whole batches
    if loader.is_repeated is not None and loader.hot_loop is None:
        return  # what is iterated over it does not make a step: it may give parts of the data
    if isinstance(collate, ast.Lambda) or "dataset" not in loader.arguments:
        return
    if size is not None and not (isinstance(size, ast.Constant) and _is_one(size.value)):
        return
    words = "batch_size=1" if size is not None else "no batch size, so 1"
    yield Hit(
        at=loader.call,
        message=f"{words}: {loader.name or 'this loader'} gives one sample per step",
        confidence=Confidence.MEDIUM if loader.use == "training" else Confidence.LOW,
        priority=None if loader.use == "training" else Priority.LOW,
        gain=_GAIN,
    )


def _slices(context: RuleContext) -> Iterator[Hit]:
    for loop in context.loops(HeatKind.TRAINING):
        found = (node for node in ast.walk(loop) if isinstance(node, ast.Call) and _takes_one(context, node))
        call = next(iter(found), None)
        hot = context.hot(call) if call is not None else None
        if call is None or hot is None or hot.guard or hot.loop_line != loop.lineno:
            continue
        message = f"{context.shown(call)} trains on one sample at a time"
        yield Hit(at=call, hot=hot, message=message, confidence=Confidence.MEDIUM, gain=_GAIN)


def _takes_one(context: RuleContext, call: ast.Call) -> bool:
    """Whether the call makes a step, or runs a model, on a slice of length one: `x[i:i + 1]`."""
    if not any(isinstance(a, ast.Subscript) and _is_one_long(a.slice) for a in call.args):
        return False
    return context.hot_paths.makes_step(call, context.module) or context.hot_paths.runs_model(call, context.module)


def _is_one_long(e: ast.expr) -> bool:
    if not isinstance(e, ast.Slice) or not isinstance(e.lower, ast.Name) or not isinstance(e.upper, ast.BinOp):
        return False
    upper = e.upper
    is_next = isinstance(upper.op, ast.Add) and isinstance(upper.left, ast.Name) and upper.left.id == e.lower.id
    return is_next and isinstance(upper.right, ast.Constant) and _is_one(upper.right.value)


def _is_one(value: object) -> bool:
    return is_known(value) and value == 1 and not isinstance(value, bool)


def _trains(context: RuleContext) -> bool:
    """Whether the project trains at all: options of programs for inference may well be 1."""
    return HeatKind.TRAINING in context.hot_paths.loops.values()
