"""CMP101 no-compile: a program that trains or runs a model in a loop and never compiles it.

Finds       A script with a training or inference loop and the statement that makes its model, where nothing in the
            program names torch.compile, jit, a graph exporter or a framework that compiles by itself.
Why slow    Eager operators each read and write memory and cost a launch; a compiled model fuses them.
Example     model = Net().to(device); for x, y in loader: ...
Instead     model = Net().to(device); model.compile()
Gain        often 0 to 40% on a GPU, less on a CPU; compiling takes tens of seconds and pays only in long runs.
Fix         unsafe: rounding differs; shapes that change compile anew. In place: checkpoints keep their keys. None where
            gradients of gradients are taken, and where the project supports a torch before 2.2.
Source      PyTorch documentation of torch.compile and torch.nn.Module.compile.
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.calls import CallKind
from whet_audit.dataflow import names_in
from whet_audit.finding import Confidence, Fix, Gain, Hit, InsertAfter, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.project_words import is_script, mentions, says
from whet_audit.requirements import supports
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function, LoopNode

CODE = "CMP101"
NAME = "no-compile"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_NOT_COMPILED = (
    r"(?i)deepspeed|zero3|\bfsdp|fully_?shard|DistributedDataParallel|\brpc\b|tensor_parallel|tp_plan|opacus|"
    r"load_in_8bit|quantization_config|\bLazy(Linear|Conv|Batch)|create_graph|autograd\.grad\(|functional_call|\bvmap\b|jacrev|torch\.func\b|register_hook"
)
_GAIN = Gain(0.0, 0.3, "a run long enough to pay for compiling, fixed shapes, a GPU or many small operators")
_COMPILED = (
    "compile jit script_method torch_compile _dynamo export onnxruntime InferenceSession openvino tensorrt trt "
    "deepspeed vllm LLM thunder keras Trainer LightningModule TrainingArguments dynamo_backend aot_module "
    "make_graphed_callables CUDAGraph torch_xla ipex"
).split()


def check(context: RuleContext) -> Iterator[Hit]:
    """The first step loop of a script, at the statement that makes its model."""
    if not is_script(context.module) or says(context.project, context.module, *_COMPILED):
        return
    for loop in context.loops(HeatKind.TRAINING, HeatKind.INFERENCE, HeatKind.DENOISING):
        call = _forward_call(context, loop)
        made = _made(context, call) if call is not None else None
        if call is None or made is None:
            continue
        yield Hit(
            at=made,
            hot=context.hot(call),
            message=f"{context.shown(made)} is never compiled, and {context.shown(call.func)} runs in every step",
            confidence=Confidence.MEDIUM,
            gain=_GAIN,
            fix=_compiled(context, call, made),
        )
        return


def _forward_call(context: RuleContext, loop: LoopNode) -> ast.Call | None:
    """The first call of a model by its name that every turn of the loop makes."""
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for call in sorted(calls, key=lambda call: call.lineno):
        hot = context.hot(call) if context.call_kind(call) is CallKind.MODEL else None
        if hot is not None and not hot.guard and "target" not in context.source(call.func):
            return call
    return None


def _made(context: RuleContext, call: ast.Call) -> ast.stmt | None:
    """The statement that makes the model: an instance of a class or a pretrained one, in the loop's own scopes."""
    assert isinstance(call.func, ast.Name)
    scope: Function | None = context.function_of(call)
    while scope is not None:
        for binding in scope.bindings.get(call.func.id, []):
            value = binding.value
            if binding.how != "value" or binding.path or not isinstance(value, ast.Call):
                continue
            is_new = call.func.id not in names_in(value)
            if is_new and context.kind(value) is Kind.MODEL and isinstance(binding.node, ast.Assign):
                return binding.node
        scope = scope.parent
    return None


def _compiled(context: RuleContext, call: ast.Call, made: ast.stmt) -> Fix | None:
    """Compile in place after the last statement that binds the name; only where all are in one block."""
    assert isinstance(call.func, ast.Name)
    value = context.value(made.value) if isinstance(made, ast.Assign) else context.value(call.func)
    if value.kind is not Kind.MODEL or not value.is_sure or supports(context.module.path, (2, 2)) is False:
        return None
    if mentions(context.project, context.module, _NOT_COMPILED):
        return None
    scope = context.function_of(made)
    bindings = scope.bindings.get(call.func.id, [])
    blocks = {context.parent(binding.node) for binding in bindings}
    if len(blocks) != 1 or scope is not context.function_of(call) or any(b.how != "value" for b in bindings):
        return None
    last = max((binding.node for binding in bindings), key=lambda node: getattr(node, "lineno", 0))
    if not isinstance(last, ast.Assign) or last.lineno > call.lineno:
        return None
    edit = InsertAfter(context.span(last), f"{call.func.id}.compile()")
    return Fix("compile the model in place", False, (edit,))
