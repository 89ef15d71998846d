"""Copies from the CPU to the GPU: which calls make one, of what, and of tensors made right before."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import HotPath
from whet_audit.hot_paths import HeatKind
from whet_audit.placement import is_for_environment
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext, is_known
from whet_audit.torch_names import FACTORIES
from whet_audit.waits import LIBRARY

# Factories that take `device=`; the old constructors (torch.FloatTensor) do not.
TAKE_DEVICE = frozenset(
    "tensor as_tensor zeros ones full empty rand randn randint randperm arange linspace logspace eye".split()
)
RANDOM = frozenset("rand randn randint randperm normal bernoulli".split())
_KEEP = frozenset(
    "float double half long int bool clone contiguous view reshape unsqueeze squeeze expand repeat transpose t T "
    "uniform_ normal_ fill_ zero_ requires_grad_ permute flatten mul_ add_ bernoulli_ exponential_ type masked_fill "
    "triu tril bfloat16 pow cumsum log exp neg abs sin cos".split()
)
_ELEMENT_WISE = frozenset("exp log sqrt rsqrt sin cos pow reciprocal neg floor sigmoid tanh outer".split())
_WRAP = ("torch.triu", "torch.tril", "torch.autograd.Variable", "torch.stack", "torch.unsqueeze")
_OF_BATCHES = re.compile(r"batch|input|data|sample|^_*(recursive_|move_)?to_(device|cuda|gpu)$")
_FROM_OUTSIDE = frozenset(
    "from_numpy tensor as_tensor stack Tensor FloatTensor LongTensor IntTensor BoolTensor Variable load".split()
)
_MOVED = (Kind.TENSOR, Kind.BATCH, Kind.ENCODING)
_MOVERS = re.compile(r"(^|_)(to|transfer|move|send|put)_?(\w+_)?(to_)?(device|gpu|cuda)s?($|_)")


def transfers(context: RuleContext) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Calls that move what may be on the CPU to what may be a GPU, and what they move."""
    for call in context.calls("to", "cuda"):
        if isinstance(call.func, ast.Attribute) and not context.has_star(call) and moves_to_gpu(context, call):
            yield call, call.func.value
    for call in context.calls("type"):
        if not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        if (context.dotted(call.args[0]) or "").startswith("torch.cuda."):
            yield call, call.func.value


def moves_to_gpu(context: RuleContext, call: ast.Call) -> bool:
    """True unless the device is known to be the CPU, or the call only changes the dtype or follows another tensor."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return True
    target = context.keyword(call, "device", 0)
    if target is None:
        return False
    if re.search(r"(^|[._])device$", context.source(target)):  # also where it is taken for a tensor
        return not is_known(context.constant(target)) or not str(context.constant(target)).startswith("cpu")
    if context.kind(target) in (Kind.DTYPE, Kind.TENSOR, Kind.OUTPUT, Kind.MODEL):
        return False
    if isinstance(target, ast.Call) and name_of(target) == "device" and target.args:
        target = target.args[0]
    device = context.constant(target)
    if is_known(device):
        return isinstance(device, int) or str(device).startswith("cuda")
    if isinstance(target, ast.Name):
        bindings = context.function_of(target).bindings.get(target.id, ())
        if any(isinstance(b.value, ast.Attribute) and b.value.attr == "dtype" for b in bindings):
            return False
    words = context.source(target)
    return re.search(r"type|precision|cpu", words.lower()) is None


def follows_tensor(context: RuleContext, call: ast.Call) -> bool:
    """Whether the device is that of another tensor (`x.to(y.device)`): mostly no copy at all."""
    target = context.keyword(call, "device", 0)
    if not isinstance(target, ast.Attribute) or target.attr != "device":
        return False
    return not isinstance(target.value, ast.Name) or target.value.id not in ("self", "args", "cfg", "config", "trainer")


def made_on_cpu(context: RuleContext, expression: ast.expr, depth: int = 0) -> ast.Call | None:
    """The call of a factory that makes a tensor on the CPU, through methods that keep it there; None for others."""
    while isinstance(expression, ast.Call | ast.Attribute) and depth < 8:
        depth += 1
        if isinstance(expression, ast.Attribute):
            if expression.attr not in _KEEP and expression.attr != "data":
                return None
            expression = expression.value
            continue
        dotted = context.dotted(expression.func) or ""
        if dotted.startswith("torch.") and dotted.count(".") == 1 and dotted.rpartition(".")[2] in FACTORIES:
            is_told = any(keyword.arg in ("device", None) for keyword in expression.keywords)
            if dotted == "torch.Tensor" and len(expression.args) == 1 and not _is_size(context, expression.args[0]):
                return None  # torch.Tensor(data): what is copied was there before
            return None if is_told or dotted in ("torch.from_numpy", "torch.frombuffer", "torch.stft") else expression
        if dotted in _WRAP and expression.args:
            expression = expression.args[0]
        elif isinstance(expression.func, ast.Attribute) and expression.func.attr in _KEEP:
            expression = expression.func.value
        else:
            return None
    return None


def computed_on_cpu(context: RuleContext, expression: ast.expr, depth: int = 0) -> ast.Call | None:
    """As `made_on_cpu`, of arithmetic with numbers on such a tensor, as in `torch.exp(-torch.arange(n) / n)`."""
    if depth > 6:
        return None
    if isinstance(expression, ast.UnaryOp):
        return computed_on_cpu(context, expression.operand, depth + 1)
    if isinstance(expression, ast.BinOp):
        sides = (expression.left, expression.right)
        made = [computed_on_cpu(context, side, depth + 1) for side in sides]
        others = [side for side, one in zip(sides, made, strict=True) if one is None]
        return next(filter(None, made), None) if not any(map(context.is_tensor, others)) else None
    dotted = context.dotted(expression.func) if isinstance(expression, ast.Call) else None
    if isinstance(expression, ast.Call) and dotted is not None and dotted.removeprefix("torch.") in _ELEMENT_WISE:
        return computed_on_cpu(context, expression.args[0], depth + 1) if expression.args else None
    return made_on_cpu(context, expression)


def _is_size(context: RuleContext, argument: ast.expr) -> bool:
    return isinstance(context.constant(argument), int) or context.kind(argument) is Kind.NUMBER


def made_before(context: RuleContext, name: ast.expr) -> ast.Call | None:
    """As `made_on_cpu`, of a name that is bound to such a tensor and nothing else before it is moved."""
    if not isinstance(name, ast.Name):
        return None
    bindings = [b for b in context.function_of(name).bindings.get(name.id, ()) if b.line < name.lineno]
    if len(bindings) != 1 or bindings[0].how != "value" or bindings[0].path or bindings[0].value is None:
        return None
    return made_on_cpu(context, bindings[0].value)


def is_worker(kind: str) -> bool:
    """Whether code runs in a loader's worker processes, where no copies to a GPU belong."""
    return kind == HeatKind.DATA


def blocking_copies(context: RuleContext) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Copies of what may come from a loader, that are not told not to block; not of what was made on the spot."""
    for call, moved in transfers(context):
        if context.keyword(call, "non_blocking", 1) is not None or follows_tensor(context, call):
            continue
        value = context.value(moved)
        if _is_computed(context, moved):
            continue
        is_batch = value.kind in _MOVED or (value.kind is Kind.UNKNOWN and _is_mover(context, call))
        if not is_batch or value.device == "gpu" or made_on_cpu(context, moved) or made_before(context, moved):
            continue
        yield call, moved


def step_of(context: RuleContext, call: ast.Call) -> HotPath | None:
    """Why a copy is made in every step: a function that moves batches is there for that, whoever calls it."""
    hot = context.hot(call)
    if is_for_environment(context, call, hot):
        return None
    if hot is None and _is_mover(context, call) and _OF_BATCHES.search(context.function_of(call).name):
        return HotPath(LIBRARY, context.function_of(call).qualname)
    if hot is None or hot.guard or is_worker(hot.kind):
        return None
    if hot.kind in (HeatKind.FORWARD, HeatKind.INFERENCE_CALL) and not hot.via:
        value = context.value(call.func.value) if isinstance(call.func, ast.Attribute) else None
        return hot if value is not None and value.kind in (Kind.BATCH, Kind.ENCODING) else None
    if hot.kind == HeatKind.INFERENCE_CALL and not _is_mover(context, call):
        return None
    return hot


def made_by_helper(context: RuleContext, moved: ast.expr) -> ast.Call | None:
    """The factory's call in a function of the project that makes tensors and knows of no device; None for others."""
    helper = context.target(moved) if isinstance(moved, ast.Call) else None
    if helper is None or helper.module is not context.module or isinstance(helper.node, ast.Module):
        return None
    if "device" in context.source(helper.node) or "cuda" in context.source(helper.node) or helper.name == "__init__":
        return None
    made = (made_on_cpu(context, call) for call in helper.calls)
    return next((call for call in made if call is not None), None)


def _is_computed(context: RuleContext, moved: ast.expr) -> bool:
    """Whether a tensor is an operation's result: it lies where its inputs do."""
    if isinstance(moved, ast.BinOp):
        return True
    dotted = context.dotted(moved.func) if isinstance(moved, ast.Call) else None
    while dotted is None and isinstance(moved, ast.Call) and isinstance(moved.func, ast.Attribute):
        moved = moved.func.value  # torch.clamp(...).mul(a)
        dotted = context.dotted(moved.func) if isinstance(moved, ast.Call) else None
    return dotted is not None and dotted.startswith("torch.") and dotted.rpartition(".")[2] not in _FROM_OUTSIDE


def _is_mover(context: RuleContext, call: ast.Call) -> bool:
    function = context.function_of(call)
    return _MOVERS.search(function.name) is not None and len(function.arguments) > 1
