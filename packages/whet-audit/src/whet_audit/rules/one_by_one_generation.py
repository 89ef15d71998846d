"""INF107 one-by-one-generation: prompts or samples go through the model one at a time.

Finds       `model.generate`, a pipeline, or a model on `x.unsqueeze(0)`, once for each element of a loop that is not
            over batches.
Why slow    Decoding reads all weights for each token, for one sample as for thirty-two.
Example     for prompt in prompts: model.generate(**tokenizer(prompt, return_tensors="pt"))
Instead     for batch in batches_of(prompts, 16): model.generate(**tokenizer(batch, padding=True, return_tensors="pt"))
Gain        half and more of the loop where memory allows a batch of eight or so; less on a CPU.
Fix         none: padding, its side and the batch size are decisions.
Source      Transformers, "Text generation"; Pope et al. 2022, "Efficiently scaling transformer inference".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.growth import has_few_rounds, loop_around
from whet_audit.hot_paths import INFERS
from whet_audit.inference import runs_forward
from whet_audit.invariance import sources_in
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import Binding, LoopNode

CODE = "INF107"
NAME = "one-by-one-generation"
PRIORITY = Priority.HIGH
PREVIEW = True
_GAIN = Gain(0.2, 0.8, "memory allows a batch of eight or more; less on a CPU")
_BATCHES = re.compile(r"batch|chunk|slice|loader|itr\b|minibatch|group|split|stream|step|epoch|dl\b", re.IGNORECASE)
_TURNS = re.compile(r"history|conversation|messages|past|state|session|turn", re.IGNORECASE)


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls in loops over single samples."""
    for call in context.nodes(ast.Call):
        how = _how(context, call)
        if how is None:
            continue
        loop = loop_around(context, call)
        if not isinstance(loop, ast.For) or has_few_rounds(context, loop) or not _is_over_samples(context, call, loop):
            continue
        hot = context.hot(call)
        if hot is not None and (hot.guard or hot.kind not in INFERS):
            continue
        if how == "model" and (hot is None or not _is_one_sample(context, call, loop)):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call.func)} runs on one {context.shown(loop.target)} at a time",
            confidence=Confidence.MEDIUM if how != "model" else Confidence.LOW,
            gain=_GAIN,
            priority=None if how != "model" else Priority.MEDIUM,
        )


def _how(context: RuleContext, call: ast.Call) -> str | None:
    kind = context.call_kind(call)
    if kind is CallKind.GENERATE or (name_of(call) == "generate" and _is_model(context, call)):
        return "generate"
    if runs_forward(context, call):
        return "model"
    if isinstance(call.func, ast.Name | ast.Attribute) and call.args:
        return "pipeline" if context.value(call.func).dotted == "transformers.pipeline" else None
    return None


def _is_model(context: RuleContext, call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_own = isinstance(owner, ast.Name) and owner.id == "self"
    if owner is None or is_own or not (call.args or call.keywords):
        return False
    return context.kind(owner) is Kind.MODEL or re.search(r"(^|_|\.)(llm|gpt\d?|lm)$", ast.unparse(owner)) is not None


def _is_over_samples(context: RuleContext, call: ast.Call, loop: ast.For) -> bool:
    """Whether the loop gives single samples, and the call's arguments come from them and from no earlier round."""
    if context.kind(loop.iter) is Kind.LOADER or _BATCHES.search(
        context.source(loop.target) + context.source(loop.iter)
    ):
        return False
    counted = loop.iter.args if isinstance(loop.iter, ast.Call) and name_of(loop.iter) in ("range", "trange") else []
    if len(counted) == 3:
        return False
    targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    arguments = [*call.args, *(k.value for k in call.keywords)]
    sources = set().union(*(sources_in(context, argument, loop) for argument in arguments)) if arguments else set()
    if not sources & targets or any(_TURNS.search(name) for name in sources):
        return False
    if counted and not _indexes(loop, targets):
        return False
    return not _carries(context, loop, sources)


def _indexes(loop: ast.For, targets: set[str]) -> bool:
    """Whether the loop's number picks a sample: `prompts[i]`, and no slice."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id in targets:
            return True
    return False


def _carries(context: RuleContext, loop: LoopNode, sources: set[str]) -> bool:
    """Whether something the call reads is updated from round to round, as the tokens so far are."""
    inside = set(ast.walk(loop))
    function = context.function_of(loop)
    for name in sources:
        bindings = [b for b in function.bindings.get(name, ()) if b.node is not loop]
        own = [b for b in bindings if b.node in inside]
        if any(b.how == "update" for b in own) or (own and len(own) < len(bindings) and _reads_itself(own, name)):
            return True
    return False


def _reads_itself(bindings: list[Binding], name: str) -> bool:
    values = [binding.value for binding in bindings]
    return any(
        isinstance(node, ast.Name) and node.id == name
        for value in values
        if value is not None
        for node in ast.walk(value)
    )


def _is_one_sample(context: RuleContext, call: ast.Call, loop: LoopNode) -> bool:
    """Whether an argument is given a batch dimension of one: `x.unsqueeze(0)`, `x[None]`, `torch.tensor([x])`."""
    function = context.function_of(call)
    inside = set(ast.walk(loop))
    waiting: list[ast.AST] = [*call.args, *(k.value for k in call.keywords)]
    for argument in list(waiting):
        for name in sources_in(context, argument, loop):
            waiting += [b.value for b in function.bindings.get(name, ()) if b.node in inside and b.value is not None]
    return any(_adds_dimension(node) for e in waiting for node in ast.walk(e))


def _adds_dimension(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        return isinstance(first, ast.Constant) and first.value is None
    if not isinstance(node, ast.Call):
        return False
    if name_of(node) == "unsqueeze":
        return bool(node.args) and isinstance(node.args[-1], ast.Constant) and node.args[-1].value == 0
    is_tensor = name_of(node) in ("tensor", "LongTensor", "FloatTensor") and bool(node.args)
    return is_tensor and isinstance(node.args[0], ast.List) and len(node.args[0].elts) == 1
