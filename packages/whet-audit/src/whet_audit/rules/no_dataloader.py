"""DAT101 no-dataloader: batches cut and prepared by hand in the training loop.

Finds       A training loop that slices its data (`data[i:i + n]`) or draws from it (random.sample) and then does Python
            work on the batch: tokenises, pads, makes tensors from lists. Also in a generator that it iterates over.
Why slow    The GPU waits while one Python process prepares the next batch.
Example     for i in range(0, n, size): x = torch.tensor([encode(t) for t in texts[i:i + size]]); ...
Instead     A Dataset with the work in __getitem__ or collate_fn, and a DataLoader with workers.
Gain        time to prepare a batch / time of a step. Nothing where the data are tensors already: no finding then.
Fix         none: the data need a class of their own.
Source      PyTorch tutorial "Datasets & DataLoaders".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function, LoopNode

CODE = "DAT101"
NAME = "no-dataloader"
PRIORITY = Priority.MEDIUM
_GAIN = Gain(0.02, 0.5, "time to prepare a batch / time of a step")
_DRAWS = ("random.sample", "random.choices", "numpy.random.choice")
_FROM_LISTS = frozenset("tensor as_tensor LongTensor FloatTensor IntTensor Tensor pad_sequence stack pad".split())
_PREPARES = re.compile(r"\w*(tokeni[sz]|collat|encode|preprocess|prepare|batchify|featuri[sz]|pad_|transform)\w*")
_OF_MODELS = (CallKind.MODEL, CallKind.GENERATE)
_REPLAY = re.compile(r"memory|buffer|replay|experience|trajector|rollout|episode", re.IGNORECASE)


def check(context: RuleContext) -> Iterator[Hit]:
    """Training loops with their own slices or draws, then generators that training loops iterate over."""
    for loop in context.loops(HeatKind.TRAINING):
        yield from _in_loop(context, loop)
    for function in context.functions():
        if function.loops and _feeds_training(context, function):
            for loop in function.loops:
                taken = _taken(context, loop)
                if taken is not None and _works_on(context, loop, taken):
                    yield _hit(loop, taken, context, f"{function.name}, which feeds the training loop,")


def _in_loop(context: RuleContext, loop: LoopNode) -> Iterator[Hit]:
    taken = _taken(context, loop)
    if taken is not None and _works_on(context, loop, taken):
        hot = context.hot(taken)
        if hot is not None and not hot.guard:
            yield _hit(loop, taken, context, "the training loop")


def _hit(loop: LoopNode, taken: ast.expr, context: RuleContext, who: str) -> Hit:
    return Hit(
        at=taken,
        hot=context.hot(taken),
        message=f"{who} takes {context.shown(taken)} and prepares the batch by hand, between steps",
        confidence=Confidence.MEDIUM,
        gain=_GAIN,
    )


def _taken(context: RuleContext, loop: LoopNode) -> ast.expr | None:
    """What gives the loop its batch: the first slice by the loop's own counter, or a random draw."""
    counters = _counters(loop)
    for node in _own_nodes(loop):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice):
            lower, upper = node.slice.lower, node.slice.upper
            names = {name.id for name in ast.walk(lower) if isinstance(name, ast.Name)} if lower is not None else set()
            if upper is not None and names & counters and not _is_ready(context, node.value):
                return node
        if isinstance(node, ast.Call) and context.dotted(node.func) in _DRAWS and node.args:
            drawn = node.args[0]
            if len(node.args) + len(node.keywords) >= 2 and not _REPLAY.search(context.source(drawn)):
                return None if _is_ready(context, drawn) else node
    return None


def _own_nodes(loop: LoopNode) -> Iterator[ast.AST]:
    for statement in loop.body:
        yield from ast.walk(statement)


def _counters(loop: LoopNode) -> set[str]:
    """What `for i in range(...)` counts with, also inside tqdm and the like."""
    if not isinstance(loop, ast.For):
        return set()
    calls = (node for node in ast.walk(loop.iter) if isinstance(node, ast.Call))
    if not any(name_of(call) in ("range", "trange") for call in calls):
        return set()
    return {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}


def _is_ready(context: RuleContext, data: ast.expr) -> bool:
    """Whether slicing the data costs next to nothing: tensors and arrays."""
    return context.kind(data) in (
        Kind.TENSOR,
        Kind.ARRAY,
        Kind.OUTPUT,
        Kind.NUMBER,
        Kind.TEXT,
        Kind.ENCODING,
        Kind.BATCH,
    )


def _works_on(context: RuleContext, loop: LoopNode, taken: ast.expr) -> bool:
    """Whether Python work is done in the loop on the batch, or on what is made of it."""
    names = _made_of(context, loop, taken)
    for node in _own_nodes(loop):
        if isinstance(node, ast.ListComp) and _touches(node.generators[0].iter, names, taken):
            found = any(isinstance(inner, ast.Call) for inner in ast.walk(node.elt))
        else:
            is_call = isinstance(node, ast.Call) and any(_touches(one, names, taken) for one in node.args)
            found = is_call and isinstance(node, ast.Call) and _is_work(context, node)
        if found:
            return True
    return False


def _is_work(context: RuleContext, call: ast.Call) -> bool:
    """Whether a call tokenises, pads, prepares or makes a tensor from a list."""
    name = name_of(call)
    if context.kind(call.func) is Kind.TOKENIZER or _PREPARES.fullmatch(name):
        return True
    is_maker = name in _FROM_LISTS and (context.dotted(call.func) or "").startswith("torch.")
    return is_maker and not (
        isinstance(call.args[0], ast.Name) and context.kind(call.args[0]) in (Kind.ARRAY, Kind.TENSOR)
    )


def _made_of(context: RuleContext, loop: LoopNode, taken: ast.expr) -> set[str]:
    """Names bound from what is taken, in the order of the source, but for what a model makes of it."""
    names: set[str] = set()
    for node in _own_nodes(loop):
        if not isinstance(node, ast.Assign) or not _touches(node.value, names, taken):
            continue
        if not isinstance(node.value, ast.Call) or context.call_kind(node.value) not in _OF_MODELS:
            names |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return names


def _touches(e: ast.AST, names: set[str], taken: ast.expr) -> bool:
    return any(node is taken or (isinstance(node, ast.Name) and node.id in names) for node in ast.walk(e))


def _feeds_training(context: RuleContext, function: Function) -> bool:
    """Whether it is a generator that the header of a training loop calls."""
    if not isinstance(function.node, ast.FunctionDef):
        return False
    for at, call in context.project.callers(function):
        for up in at.module.ancestors(call):
            if isinstance(up, ast.For):
                if context.hot_paths.loops.get(up) is HeatKind.TRAINING and call in ast.walk(up.iter):
                    return any(isinstance(node, ast.Yield) for node in ast.walk(function.node))
                break
    return False
