"""MOV104 made-on-cpu-then-moved: a tensor is made on the CPU in every step and copied to the GPU.

Finds       `torch.zeros(...).to(device)`, `torch.arange(n).cuda()`, `torch.randn(...).type_as(x)`, in a step loop, a
            forward pass, or in what they call; also with the tensor in a variable between, and of arithmetic on one.
Why slow    A kernel would fill the memory on the GPU; instead the CPU fills it, and waits for a copy.
Example     mask = torch.zeros(n, n).to(x.device)
Instead     mask = torch.zeros(n, n, device=x.device)
Gain        the time of the copy and of the fill; for torch.tensor(list) little, as its data has to be copied anyway.
Fix         safe for zeros, ones, full, empty, eye, arange(n) and tensor; unsafe for random numbers (another
            generator) and for linspace and the like (other rounding).
Source      PyTorch performance tuning guide, "Create tensors directly on the target device".
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.constants import UNKNOWN_VALUE
from whet_audit.finding import Confidence, Fix, Gain, Hit, HotPath, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.placement import is_for_environment
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function
from whet_audit.transfers import (
    RANDOM,
    TAKE_DEVICE,
    computed_on_cpu,
    is_worker,
    made_before,
    made_by_helper,
    made_on_cpu,
    transfers,
)
from whet_audit.waits import LIBRARY, is_library

CODE = "MOV104"
NAME = "made-on-cpu-then-moved"
PRIORITY = Priority.MEDIUM
_GAIN = Gain(0.0, 0.1, "a fill on the CPU and a copy that blocks, in every step; nothing on a CPU")
_GAIN_OF_ARITHMETIC = Gain(0.0, 0.15, "operations on the CPU and a copy that blocks, in every step; nothing on a CPU")
_SAFE = frozenset("zeros ones full empty eye tensor as_tensor".split())
_DATA = frozenset("tensor as_tensor FloatTensor LongTensor Tensor IntTensor BoolTensor".split())


def check(context: RuleContext) -> Iterator[Hit]:
    """Copies of what a factory has just made; of data, which have to be copied anyway, the first of each function."""
    with_data: set[Function] = set()
    copies = sorted([*transfers(context), *_casts(context)], key=lambda copy: (copy[0].lineno, copy[0].col_offset))
    for call, moved in copies:
        made = made_on_cpu(context, moved) or made_before(context, moved) or made_by_helper(context, moved)
        computed = computed_on_cpu(context, moved) if made is None else None
        made = made or computed
        if made is None:
            continue
        hot = _hot(context, call, made)
        if hot is None:
            continue
        holds_data = name_of(made) in _DATA and (not made.args or context.constant(made.args[0]) is UNKNOWN_VALUE)
        sure = Confidence.LOW if computed is None else Confidence.HIGH
        is_seldom = hot.kind in (LIBRARY, HeatKind.INFERENCE_CALL)
        function = context.function_of(call)
        if holds_data and function in with_data:
            continue
        with_data |= {function} if holds_data else set()
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} is made on the CPU and copied to the GPU in every step",
            confidence=Confidence.LOW if holds_data or is_seldom else sure,
            priority=Priority.LOW if holds_data or is_seldom else None,
            gain=_GAIN if computed is None else _GAIN_OF_ARITHMETIC,
            fix=_on_device(context, call, made) if moved is made else None,
        )


def _casts(context: RuleContext) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Copies to where another tensor lies: `x.type_as(y)`, `x.to(y)`."""
    for call in context.calls("type_as", "to"):
        is_cast = isinstance(call.func, ast.Attribute) and len(call.args) == 1
        if is_cast and (name_of(call) == "type_as" or context.is_tensor(call.args[0])):
            yield call, call.func.value  # type: ignore[attr-defined]  # is_cast: it is an attribute


def _hot(context: RuleContext, call: ast.Call, made: ast.Call) -> HotPath | None:
    hot = context.hot(call)
    if hot is not None:
        # What was made before the loop is MOV106's.
        is_inside = context.function_of(made) is not context.function_of(call) or context.hot(made) is not None
        is_once = hot.kind == HeatKind.INFERENCE_CALL and not hot.via and not hot.times_per_step
        if hot.guard or is_worker(hot.kind) or not is_inside or is_once or is_for_environment(context, call, hot):
            return None
        return hot
    function = context.function_of(call)
    return HotPath(LIBRARY, function.qualname) if is_library(context, call) else None


def _on_device(context: RuleContext, call: ast.Call, made: ast.Call) -> Fix | None:
    """The factory's call with a device of its own, where nothing else changes by it."""
    name = name_of(made)
    if name not in TAKE_DEVICE or context.has_star(made) or call.func.attr not in ("to", "cuda"):  # type: ignore[attr-defined]
        return None
    if any(keyword.arg in ("generator", "requires_grad", "out", "pin_memory") for keyword in made.keywords):
        return None
    if any(keyword.arg not in ("device", "non_blocking") for keyword in call.keywords) or len(call.args) > 1:
        return None
    target = context.keyword(call, "device", 0)
    if target is not None and not _is_device(context, target):
        return None
    device = "'cuda'" if target is None else context.source(target)
    if target is not None and name_of(call) == "cuda" and not isinstance(context.constant(target), str | int):
        return None  # cuda(None) is another device than device=None
    source = context.source(made)
    if "#" in source or any(isinstance(argument, ast.GeneratorExp) for argument in made.args):
        return None
    head = source[: source.rindex(")")].rstrip()
    comma = "" if head.endswith(("(", ",")) else ","
    is_safe = name in _SAFE or (name == "arange" and len(made.args) == 1)
    return context.replace(
        call,
        f"{head}{comma}{' ' if comma or head.endswith(',') else ''}device={device})",
        "make the tensor on the GPU",
        safe=is_safe and name not in RANDOM,
    )


def _is_device(context: RuleContext, target: ast.expr) -> bool:
    """Whether `device=` takes what `.to()` was given: that may be a dtype or a tensor too."""
    if isinstance(context.constant(target), str | int) or context.kind(target) is Kind.DEVICE:
        return True
    return context.source(target).removesuffix("()").endswith("device")
