"""PRE106 float64-in-step: double precision on a GPU.

Finds       `.double()`, `.to(torch.float64)` and `dtype=torch.float64` of tensors in a step or on their way to a GPU;
            a model in double precision that is trained; torch.set_default_dtype(torch.float64).
Why slow    Most GPUs compute float64 at 1/64 of the speed of float32, and it takes twice the memory everywhere.
Example     x = torch.from_numpy(points).double().to(device)
Instead     float32, and float64 for what sums over the whole data set, on the CPU.
Gain        large where such tensors are much of the step.
Fix         none: some methods need the digits.
Source      NVIDIA CUDA C++ programming guide, "Arithmetic instructions", throughput per compute capability.
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext

CODE = "PRE106"
NAME = "float64-in-step"
PRIORITY = Priority.LOW
PREVIEW = True
_GAIN = Gain(0.0, 0.5, "a GPU, and float64 tensors of more than a few numbers")
_DOUBLE = ("torch.float64", "torch.double", "numpy.float64", "numpy.double")
_SCALARS = frozenset(
    (
        "sum mean item norm std var max min prod numel size loss len count_nonzero total_norm correct accuracy acc "
        "eq any all nelement tensor scalar_tensor"
    ).split()
)


def check(context: RuleContext) -> Iterator[Hit]:
    """Conversions of tensors, models in double precision, and the default."""
    if "double" not in context.module.text and "float64" not in context.module.text:
        return
    for call in context.calls("double", "to", "type"):
        if not isinstance(call.func, ast.Attribute) or not _is_conversion(context, call):
            continue
        owner = call.func.value
        if context.kind(owner) is Kind.MODEL and call.func.attr == "double":
            if context.mentions_gpu and any(context.loops(HeatKind.TRAINING)):
                message = f"{context.shown(call)}: the whole model computes in float64"
                yield Hit(at=call, message=message, confidence=Confidence.LOW, gain=_GAIN)
        elif context.is_tensor(owner) and not _is_scalar(owner):
            yield from _tensor(context, call)
    for call in context.calls_to("torch.set_default_dtype"):
        if call.args and context.dotted(call.args[0]) in _DOUBLE[:2]:
            message = "everything is float64 by default"
            yield Hit(at=call, message=message, confidence=Confidence.MEDIUM, gain=_GAIN)


def _is_conversion(context: RuleContext, call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr == "double":
        return not call.args
    given = [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg == "dtype")]
    return any(context.dotted(one) in _DOUBLE for one in given)


def _tensor(context: RuleContext, call: ast.Call) -> Iterator[Hit]:
    is_moved = _goes_to_gpu(context, call)
    hot = context.hot(call)
    if hot is not None and (hot.guard or HeatKind(hot.kind) is HeatKind.DATA):
        return
    is_step = hot is not None and HeatKind(hot.kind) not in (HeatKind.FORWARD, HeatKind.INFERENCE_CALL)
    if not is_moved and not (is_step and context.mentions_gpu):
        return
    where = "for the GPU" if is_moved else "in every step"
    message = f"{context.shown(call)} makes float64 {where}"
    yield Hit(at=call, hot=hot, message=message, confidence=Confidence.LOW, gain=_GAIN)


def _goes_to_gpu(context: RuleContext, call: ast.Call) -> bool:
    """Whether the same expression moves it to a device that is not known to be the CPU."""
    assert isinstance(call.func, ast.Attribute)
    chain = [up for up in (context.parent(context.parent(call) or call), call.func.value) if isinstance(up, ast.Call)]
    for other in chain:
        if not isinstance(other.func, ast.Attribute) or other.func.attr not in ("to", "cuda"):
            continue
        if other.func.attr == "cuda":
            return True
        target = context.keyword(other, "device", 0)
        if target is not None and context.kind(target) not in (Kind.DTYPE, Kind.TENSOR):
            return context.kind(target) is Kind.DEVICE or "device" in context.source(target)
    return False


def _is_scalar(e: ast.expr) -> bool:
    """Whether it is one number, most likely, for which the type costs nothing."""
    if isinstance(e, ast.Call):
        return name_of(e) in _SCALARS and not any(keyword.arg in ("dim", "axis") for keyword in e.keywords)
    name = e.attr if isinstance(e, ast.Attribute) else getattr(e, "id", "")
    return any(part in _SCALARS for part in name.lower().split("_"))
