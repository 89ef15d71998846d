"""Where reading a tensor makes the CPU wait for the GPU: which reads count, how often they run, how sure that is."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Fix, Gain, Hit, HotPath, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.placement import (
    is_for_environment,
    is_fresh_on_cpu,
    is_left_behind,
    is_of_other_framework,
    was_waited_for,
)
from whet_audit.project import name_of, root_name
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

WAIT_GAIN = Gain(0.0, 0.15, "a GPU that waits for its kernels to be queued; nothing on a CPU")
COPY_GAIN = Gain(0.0, 0.15, "a GPU that waits for its kernels to be queued, or large copies; nothing on a CPU")

LIBRARY = "library function"  # the kind of `Hot` for code that takes tensors and whose callers are not here
_OFTEN = 12  # waits in each step: about one in each layer
_TENSOR_LIKE = (Kind.TENSOR, Kind.OUTPUT)
_ONCE = re.compile(
    r"(^|_)(init|setup|build|load|save|from|convert|export|reset|register|parse|main|plot|show|draw|visuali[sz]e|repr|"
    r"str|summary|describe|print|report|test|tests|validate|benchmark|bench|profile|demo|example|quantize|dequantize|"
    r"prune|fit|configure|calibrate|download|read|write|dump|state|extra|collate|tokenize|preprocess|postprocess|post|"
    r"merge|unmerge|debug|import|finali[sz]e|finish|end|close|lr)(_|$)|^compute$"
)
_LOSS = re.compile(r"(^|_)loss(es)?($|_)|(Loss|Criterion)\b")
_ONCE_PATHS = re.compile(
    r"(^|/)(tests?|docs?|scripts?|tools?|benchmarks?|conversion|_?testing|onnx|datasets?|data|quantization|pruner|"
    r"sparsity|pt2e|converters?|exporters?|examples?)/"
)
_PASSES = frozenset(
    "detach cpu data float double half clone to squeeze flatten reshape view contiguous long int bool T byte mean sum "
    "transpose permute".split()
)
_TENSOR_ATTRIBUTES = frozenset("T mT H mH real imag grad data".split())
_NOT_VALUES = re.compile(r"^_?(is|has|are|get|set|use|can)_|^(is|has)[A-Z]|^(shape|ndim|dtype|device|layout|names)$")
_TIMERS = frozenset("time perf_counter perf_counter_ns process_time monotonic elapsed_time default_timer".split())


class Wait(NamedTuple):
    """A place where the CPU waits in every step."""

    hot: HotPath
    confidence: Confidence
    priority: Priority | None = None  # None: the rule's own

    @property
    def if_often(self) -> Wait:
        """The wait, unsure but where a step surely makes it many times: for rules of which little else was right."""
        is_often = self.hot.times >= _OFTEN and self.confidence is Confidence.HIGH
        return self if is_often else self._replace(confidence=Confidence.LOW)

    def hit(self, at: ast.AST, message: str, gain: Gain, fix: Fix | None = None) -> Hit:
        """What a rule yields for it."""
        return Hit(at, message, gain, self.confidence, self.hot, fix, self.priority)


def wait_for(context: RuleContext, node: ast.AST, tensor: ast.expr, *, known: bool = True) -> Wait | None:
    """How a read of `tensor` at `node` holds up the step; None where it does not, or only in rare steps.

    known: only what is known or named as a tensor counts; else also what may be anything.
    """
    value = context.value(tensor)
    if value.kind not in _TENSOR_LIKE and (known or value.kind is not Kind.UNKNOWN):
        return None
    if is_on_cpu(context, tensor) or is_left_behind(context, tensor) or is_no_tensor_here(context, node, tensor):
        return None
    is_unknown = value.kind is Kind.UNKNOWN
    is_sure = _holds_buffer(context, tensor) if is_unknown else value.is_sure
    if is_unknown and _is_keyword(context, tensor):
        wait = wait_at(context, node, is_sure=False)
        return None if wait is None else wait._replace(confidence=Confidence.LOW)
    return wait_at(context, node, is_sure=is_sure or is_checked(context, node))


def wait_at(context: RuleContext, node: ast.AST, *, is_sure: bool) -> Wait | None:
    """As `wait_for`, for what waits whatever it reads. is_sure: whether it is certain that it waits for a GPU."""
    hot = context.hot(node)
    if hot is not None and not context.mentions_gpu and ".cpu()" not in context.module.text and hot.loop_line:
        return None  # a loop for the CPU alone; a library's function runs wherever its caller's tensors are
    if is_for_environment(context, node, hot) or is_of_other_framework(context, node):
        return None
    if hot is None:
        if not is_sure or not is_library(context, node) or is_guarded(context, node):
            return None
        return Wait(HotPath(LIBRARY, context.function_of(node).qualname), Confidence.LOW, Priority.LOW)
    if hot.guard or hot.kind == HeatKind.DATA:
        return None
    if hot.kind == HeatKind.INFERENCE_CALL:
        return None  # once a request, which mostly has to have its answer
    return Wait(hot, Confidence.HIGH if is_sure else Confidence.MEDIUM)


def wait_for_copy(context: RuleContext, node: ast.AST, tensor: ast.expr, *, known: bool) -> Wait | None:
    """As `wait_for`, for whole tensors that go to the CPU: what inference is for has to go there some time."""
    wait = wait_for(context, node, tensor, known=known)
    if wait is None or wait.hot.kind != HeatKind.INFERENCE:
        return wait
    if was_waited_for(context, node, wait.hot):
        return None
    return wait._replace(confidence=Confidence.LOW, priority=Priority.LOW)


def is_guarded(context: RuleContext, node: ast.AST) -> bool:
    """Whether a node of a function that is not hot lies under an except, a raise, a debug flag, or in a lambda."""
    for up in context.ancestors(node):
        if isinstance(up, ast.ExceptHandler | ast.Raise | ast.Lambda):
            return True
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(up, ast.If) and any(isinstance(statement, ast.Raise) for statement in up.body):
            return node not in ast.walk(up.test)
    return False


def is_on_cpu(context: RuleContext, tensor: ast.expr) -> bool:
    """Whether a tensor is known to lie in the CPU's memory: made there, or copied there before."""
    value = context.value(tensor)
    if value.device == "cpu":
        return True
    if isinstance(tensor, ast.Call) and (to_cpu(context, tensor) is not None or is_fresh_on_cpu(context, tensor)):
        return True
    if isinstance(tensor, ast.Subscript | ast.Attribute):
        return is_on_cpu(context, tensor.value)
    if isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute) and context.dotted(tensor.func) is None:
        return is_on_cpu(context, tensor.func.value) if tensor.func.attr not in ("to", "cuda") else False
    if isinstance(tensor, ast.Name):
        bindings = [b for b in context.function_of(tensor).bindings.get(tensor.id, ()) if b.line < tensor.lineno]
        last = bindings[-1].value if bindings and bindings[-1].how == "value" else None
        return isinstance(last, ast.Call) and to_cpu(context, last) is not None
    return False


def to_cpu(context: RuleContext, call: ast.Call) -> ast.expr | None:
    """What a call copies to the CPU: x of `x.cpu()`, `x.to("cpu")`, `x.to(torch.device("cpu"))`; None for others."""
    if not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr == "cpu" and not call.args:
        return call.func.value
    if call.func.attr != "to":
        return None
    target = context.keyword(call, "device", 0)
    if isinstance(target, ast.Call) and name_of(target) == "device" and target.args:
        target = target.args[0]
    is_cpu = isinstance(target, ast.Constant) and isinstance(target.value, str) and target.value.startswith("cpu")
    return call.func.value if is_cpu else None


def chain(expression: ast.expr) -> tuple[ast.expr, list[ast.expr]]:
    """What a chain such as `x.detach().cpu().float()` starts from, and its links from the last to the first."""
    links: list[ast.expr] = []
    while True:
        if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
            if expression.func.attr not in _PASSES:
                return expression, links
            links.append(expression)
            expression = expression.func.value
        elif isinstance(expression, ast.Attribute) and expression.attr in _PASSES:
            links.append(expression)
            expression = expression.value
        else:
            return expression, links


def copied_in(context: RuleContext, expression: ast.expr) -> ast.expr | None:
    """The tensor that a chain copies to the CPU on its way; None where it copies none."""
    for link in chain(expression)[1]:
        if isinstance(link, ast.Call):
            source = to_cpu(context, link)
            if source is not None:
                return source
    return None


def is_tensor_value(context: RuleContext, expression: ast.expr) -> bool:
    """Whether an expression is a tensor and not one of its properties, of which the library does not know all."""
    if not context.is_tensor(expression):
        return False
    if isinstance(expression, ast.Attribute):
        if context.is_tensor(expression.value) and context.kind(expression.value) is Kind.TENSOR:
            return expression.attr in _TENSOR_ATTRIBUTES
        return _NOT_VALUES.search(expression.attr) is None
    if isinstance(expression, ast.Call):
        return _NOT_VALUES.search(name_of(expression)) is None
    if isinstance(expression, ast.Subscript):
        return context.kind(expression.value) is not Kind.TENSOR or is_tensor_value(context, expression.value)
    if isinstance(expression, ast.Compare):
        return any(is_tensor_value(context, side) for side in (expression.left, *expression.comparators))
    if isinstance(expression, ast.BinOp):
        return any(is_tensor_value(context, side) for side in (expression.left, expression.right))
    return True


def is_timed(context: RuleContext, node: ast.AST) -> bool:
    """Whether the statement stands right beside one that reads a clock, or in a function that measures."""
    function = context.function_of(node)
    if re.search(r"bench|profil|measur|timer|timing|timeit|latency|throughput|warm", function.name.lower()):
        return True
    statement = context.statement(node)
    parent = context.parent(statement)
    while isinstance(parent, ast.If) and len(parent.body) == 1:
        statement, parent = parent, context.parent(parent)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            place = block.index(statement)
            near = block[max(0, place - 2) : place + 3]
            calls = (call for one in near for call in ast.walk(one) if isinstance(call, ast.Call))
            return any(name_of(call) in _TIMERS or name_of(call) == "record" for call in calls)
    return False


def is_library(context: RuleContext, node: ast.AST) -> bool:
    """Whether a node's function takes tensors and may be called in every step by code that is not here."""
    function = context.function_of(node)
    if isinstance(function.node, ast.Module | ast.Lambda) or not context.module.uses_torch:
        return False
    path = context.module.place
    if _ONCE_PATHS.search(path) or path.rpartition("/")[2].startswith(("test_", "convert", "setup", "conftest")):
        return False
    if any(loop in context.hot_paths.loops for loop in function.loops):
        return False  # it drives the loop, and runs once
    if _LOSS.search(function.qualname) and function.name != "__init__":
        return True
    if _ONCE.search(function.name.strip("_")) or function.name.startswith("__"):
        return False
    return _takes_tensors(function) or _is_of_model(context, function) or is_checked(context, node)


def _is_of_model(context: RuleContext, function: Function) -> bool:
    """Whether it is a method of an nn.Module, also of one whose base is not here: it has a forward pass or buffers."""
    cls = function.cls
    if cls is None:
        return False
    if context.is_model_class(cls) or "forward" in cls.methods:
        return True
    return any(context.class_of(call) is cls for call in context.calls("register_buffer"))


def _takes_tensors(function: Function) -> bool:
    assert not isinstance(function.node, ast.Module | ast.Lambda)
    given = [*function.arguments, function.node.args.vararg]
    return any(one is not None and one.annotation and "Tensor" in ast.unparse(one.annotation) for one in given)


def is_checked(context: RuleContext, node: ast.AST) -> bool:
    """Whether a node stands where `isinstance(x, torch.Tensor)` holds of something."""
    child = node
    for up in context.ancestors(node):
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(up, ast.If | ast.IfExp):
            is_body = child in up.body if isinstance(up, ast.If) else child is up.body
            test = ast.unparse(up.test) if is_body else ""
            if ("isinstance(" in test and "Tensor" in test and "not " not in test) or "is_tensor(" in test:
                return True
        child = up
    return False


def is_no_tensor_here(context: RuleContext, node: ast.AST, value: ast.expr) -> bool:
    """Whether a node stands where a condition says that a value is of another type: `if isinstance(x, int):`."""
    child = node
    for up in context.ancestors(node):
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        is_body = child in up.body if isinstance(up, ast.If) else isinstance(up, ast.IfExp) and child is up.body
        if isinstance(up, ast.If | ast.IfExp) and is_body:
            for test in up.test.values if isinstance(up.test, ast.BoolOp) else [up.test]:
                is_test = isinstance(test, ast.Call) and name_of(test) == "isinstance" and len(test.args) == 2
                if is_test and isinstance(test, ast.Call) and ast.unparse(test.args[0]) == ast.unparse(value):
                    return not any("Tensor" in word for word in re.findall(r"\w+", ast.unparse(test.args[1])))
        child = up
    return False


def _is_keyword(context: RuleContext, value: ast.expr) -> bool:
    """Whether a value is one of a function's `**kwargs`, which may be numbers for most callers."""
    function = context.function_of(value)
    extra = None if isinstance(function.node, ast.Module) else function.node.args.kwarg
    if extra is None or not isinstance(value, ast.Name):
        return False
    bindings = function.bindings.get(value.id, ())
    items = [one.value.func for one in bindings if one.how == "item" and isinstance(one.value, ast.Call)]
    return any(root_name(one) == extra.arg for one in items)


def is_buffer(context: RuleContext, expression: ast.expr) -> bool:
    """Whether an expression is `self.NAME` of a model that registers NAME as a buffer or a parameter."""
    if not isinstance(expression, ast.Attribute) or getattr(expression.value, "id", "") != "self":
        return False
    for call in context.calls("register_buffer", "register_parameter"):
        name = context.keyword(call, "name", 0)
        if isinstance(name, ast.Constant) and name.value == expression.attr:
            return True
    return False


def _holds_buffer(context: RuleContext, expression: ast.expr) -> bool:
    return any(isinstance(one, ast.Attribute) and is_buffer(context, one) for one in ast.walk(expression))
