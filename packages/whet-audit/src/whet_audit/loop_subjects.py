"""What a Python loop runs over: the samples of a batch, time steps, heads, experts; and what it does to tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import Enum

from whet_audit.abstract_types import Kind
from whet_audit.dataflow import last_name, latest
from whet_audit.finding import HotPath
from whet_audit.hot_paths import HeatKind
from whet_audit.project import root_name
from whet_audit.rule_context import RuleContext

Loop = ast.For | ast.comprehension
_BATCH = re.compile(
    r"(n_|num_)?(batch_?size|bsz?|bsize|batch|n_?batch|n_samples|num_samples|n_?graphs)(_\w)?|B|b|bs_", re.I
)
_TIME = re.compile(
    r"(\w+_)?(seq_?len(gth)?|max_?len(gth)?|time_?steps?|(src|tgt|trg|target|input|text|sequence|decoder|encoder)_"
    r"(len|length|steps?)|n_?steps|num_steps|seqlens?|n_?frames|num_frames|horizon|lookback|n_time)|T|t_len|(seq_)?L",
)
_TIME_TARGETS = frozenset("t tt ts time step time_step timestep pos position frame tau".split())
_HEADS = re.compile(
    r"(self\.)?(n|num|nb|number_of)?_?(attention_)?(heads?|codebooks?|groups|quantizers|streams|n_q)", re.I
)
_HEADS_LISTS = re.compile(r"(?!param_)(\w*_)?(heads|codebooks|groups|streams)(_\w+)?", re.I)
_NOT_ROWS = re.compile(
    r"(\w*_)?(shapes?|sizes|lens|lengths|lists?|tensors|features|feats|all|levels|splits?|chunks?|masks_list)(_\w+)?|all_\w+"
)
_LISTS = frozenset(
    "split chunk unbind nonzero unique arange linspace where meshgrid broadcast_tensors tensor_split".split()
)
_EXPERTS = re.compile(r"(n|num|local|nb)?_?(local_|routed_|num_)*(experts?)(_per_\w+|_list)?", re.I)
_SHOWS = re.compile(r"plot|show|draw|visuali|log_image", re.I)
_SELDOM = re.compile(r"test|plot|show|draw|visuali|save|load|init|reset|build|export|print|convert", re.I)
_NOT_LIBRARY = re.compile(r"(^|/)(tests?|examples?|scripts|test_\w+)(/|\.py)|feature_extraction|processing|convert_")
_WRAPPERS = frozenset("enumerate tqdm trange reversed list iter track zip sorted".split())
_SIDEWAYS = frozenset("unbind split chunk transpose permute tensor_split".split())


class Subject(Enum):
    """What a loop runs over."""

    BATCH = "samples of a batch"
    TIME = "time steps"
    POSITIONS = "a tensor's second dimension"  # time, or channels, or anything
    HEADS = "heads"
    EXPERTS = "experts"
    OTHER = "other"


def subject(context: RuleContext, loop: Loop) -> Subject:
    """What the loop runs over, by its bound, what it iterates and the name it gives."""
    iterable = loop.iter
    while isinstance(iterable, ast.Call) and last_name(iterable.func) in _WRAPPERS and iterable.args:
        if last_name(iterable.func) == "zip":
            return _of_zip(context, iterable.args, loop.target)
        iterable = iterable.args[0]
    return _of_items(context, iterable, loop.target)


def _of_zip(context: RuleContext, items: list[ast.expr], target: ast.expr) -> Subject:
    """The first that is known; where a list of tensors or layers goes beside it, rows may differ."""
    found = [_of_items(context, item, target) for item in items]
    known = [one for one in found if one is not Subject.OTHER]
    has_list = any(_NOT_ROWS.fullmatch(last_name(item)) or root_name(item) == "self" for item in items)
    if not known or known[0] is Subject.HEADS or (known[0] is Subject.BATCH and (has_list or found[0] is not known[0])):
        return Subject.OTHER  # heads beside inputs of their own differ in what they do
    return known[0]


def _of_items(context: RuleContext, e: ast.expr, target: ast.expr) -> Subject:
    if isinstance(e, ast.Call) and last_name(e.func) in ("range", "arange") and 0 < len(e.args) < 3:
        return _of_bound(context, e.args[-1], target, 0)
    name = last_name(e)
    targets = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
    if any("expert" in one.lower() for one in targets) and name:
        return Subject.EXPERTS
    if name and _EXPERTS.fullmatch(name) and isinstance(e, ast.Attribute):
        return Subject.EXPERTS
    if name and _HEADS_LISTS.fullmatch(name) and isinstance(e, ast.Attribute):
        return Subject.HEADS
    if isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr in _SIDEWAYS:
        return _of_parts(context, e, target)
    if isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr == "tolist":
        e = e.func.value  # for left, right in pairs.tolist()
    return Subject.BATCH if _is_whole(context, e) else Subject.OTHER


def _of_parts(context: RuleContext, e: ast.Call, target: ast.expr) -> Subject:
    """x.unbind(1), x.split(1, dim=1), x.transpose(0, 1): along time where the second dimension is meant."""
    dimension = context.constant(context.keyword(e, "dim", 0 if last_name(e.func) in ("unbind", "transpose") else 1))
    if last_name(e.func) == "split" and context.constant(context.keyword(e, "split_size", 0)) != 1:
        return Subject.OTHER
    if last_name(e.func) in ("unbind", "split", "transpose") and dimension in (0, 1):
        return Subject.TIME if dimension == 1 or _is_time(target) or last_name(e.func) == "transpose" else Subject.BATCH
    return Subject.OTHER


def _of_bound(context: RuleContext, e: ast.expr, target: ast.expr, depth: int) -> Subject:
    if isinstance(e, ast.BinOp) and isinstance(e.op, ast.Add | ast.Sub):  # range(T - 1)
        return _of_bound(context, e.left, target, depth)
    name = last_name(e)
    if _EXPERTS.fullmatch(name):
        return Subject.EXPERTS
    if name and _HEADS.fullmatch(name):
        return Subject.HEADS
    if _BATCH.fullmatch(name):
        return Subject.BATCH
    if _TIME.fullmatch(name):
        return Subject.TIME
    dimension = _dimension(context, e)
    if dimension is not None:
        return (
            Subject.TIME
            if _is_time(target)
            else Subject.BATCH
            if dimension == 0
            else Subject.POSITIONS
            if dimension in (1, -2)
            else Subject.OTHER
        )
    if isinstance(e, ast.Name) and depth < 3:
        bound = latest(context, e)
        if bound is not None:
            return _of_bound(context, bound, target, depth + 1)
        return _of_unpacked(context, e, target)
    return Subject.OTHER


def _of_unpacked(context: RuleContext, name: ast.Name, target: ast.expr) -> Subject:
    """n, t = x.shape[:2]: by the place in the shape."""
    for binding in reversed(context.function_of(name).bindings.get(name.id, [])):
        if binding.line > name.lineno or binding.value is None or len(binding.path) != 1 or binding.how != "value":
            continue
        shape = binding.value
        while isinstance(shape, ast.Subscript):
            shape = shape.value
        is_shape = isinstance(shape, ast.Attribute) and shape.attr == "shape"
        is_size = isinstance(shape, ast.Call) and last_name(shape.func) == "size" and not shape.args
        if is_shape or is_size:
            if binding.path == (0,) and not _is_time(target):
                return Subject.BATCH
            if _is_time(target):
                return Subject.TIME
            return Subject.POSITIONS if binding.path == (1,) else Subject.OTHER
    return Subject.OTHER


def _dimension(context: RuleContext, e: ast.expr) -> int | None:
    """Which dimension x.shape[1], x.size(1) or len(x) of a tensor is; None for anything else."""
    owner: ast.expr
    if isinstance(e, ast.Subscript) and isinstance(e.value, ast.Attribute) and e.value.attr == "shape":
        owner, index = e.value.value, context.constant(e.slice)
    elif isinstance(e, ast.Call) and last_name(e.func) == "size" and isinstance(e.func, ast.Attribute):
        owner, index = e.func.value, context.constant(context.keyword(e, "dim", 0))
    elif isinstance(e, ast.Call) and last_name(e.func) == "len" and len(e.args) == 1:
        return 0 if context.is_tensor(e.args[0]) else None
    else:
        return None
    is_array = context.kind(owner) in (Kind.ARRAY, Kind.FRAME, Kind.LIST) or re.search(
        r"(^|_)np(_|$)|numpy|array|(^|_)df(_|$)", last_name(owner)
    )
    if is_array or not isinstance(index, int):
        return None
    return index


def _is_time(target: ast.expr) -> bool:
    names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
    return any(name in _TIME_TARGETS or name.endswith("_t") for name in names)


def _is_whole(context: RuleContext, e: ast.expr) -> bool:
    """Whether it is one tensor for sure, and no list of tensors that is called one: by its annotation or its making."""
    if isinstance(e, ast.Subscript) and isinstance(e.slice, ast.Slice):
        return False
    if not _is_tensor(context, e) or _NOT_ROWS.fullmatch(last_name(e)):
        return False
    bound = e
    if isinstance(e, ast.Name) and latest(context, e) is None:
        annotations = [a.annotation for a in context.function_of(e).arguments if a.arg == e.id and a.annotation]
        if annotations and f"isinstance({e.id}, " not in context.source(context.function_of(e).node):
            words = ast.unparse(annotations[0]).replace("Optional", "").strip("[]'\" ")
            return re.fullmatch(r"(torch\.)?(\w+\.)*(\w*Tensor)( \| None)?", words) is not None
        return False
    if isinstance(e, ast.Name):
        bound = latest(context, e) or e
    is_made = isinstance(bound, ast.Call | ast.BinOp)
    while isinstance(bound, ast.Call) and isinstance(bound.func, ast.Attribute) and bound.func.attr in ("to", "cuda"):
        bound = bound.func.value
    return is_made and not (isinstance(bound, ast.Call) and last_name(bound.func) in _LISTS)


def _is_tensor(context: RuleContext, e: ast.expr) -> bool:
    return context.is_tensor(e, surely=True) and not isinstance(e, ast.Constant)


def tensor_work(context: RuleContext, loop: Loop, body: list[ast.AST]) -> int:
    """How many tensor operations of the body depend on the loop's variable: calls, operators and writes to slices."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    count = 0
    for node in (node for part in body for node in ast.walk(part)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            count += _mentions(node, names) and (context.is_tensor(node.value) or root_name(node) in names)
        elif isinstance(node, ast.Call | ast.BinOp) and context.is_tensor(node):
            names |= _made(context, node)
            count += _mentions(node, names)
    return count


def _made(context: RuleContext, node: ast.expr) -> set[str]:
    """The plain names that a statement binds to a value."""
    statement = context.statement(node)
    if isinstance(statement, ast.Assign):
        return {t.id for target in statement.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    return set()


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))


def runs_often(context: RuleContext, node: ast.AST) -> tuple[bool, HotPath | None]:
    """Whether a node is in hot code, and why; also in a function on tensors that a library offers (no Hot then)."""
    hot = context.hot(node)
    function = context.function_of(node)
    if hot is not None:
        return not hot.guard and hot.kind != HeatKind.DATA and not _SHOWS.search(function.name), hot
    if isinstance(function.node, ast.Module) or _SELDOM.search(function.name):
        return False, None
    if _NOT_LIBRARY.search(context.module.place):
        return False, None
    return any(a.annotation is not None and "Tensor" in ast.unparse(a.annotation) for a in function.arguments), None


def independent_loops(context: RuleContext, wanted: Subject) -> Iterator[tuple[ast.AST, Loop, HotPath | None]]:
    """Loops and comprehensions over a subject in hot code, with tensor work in each turn and no state from the last."""
    for loop in context.nodes(ast.For):
        if subject(context, loop) is wanted and loop not in context.hot_paths.loops and not hands_on(loop):
            often, hot = runs_often(context, loop)
            if often and (tensor_work(context, loop, list(loop.body)) or runs_target(loop, loop)):
                yield loop, loop, hot
    comprehensions: list[ast.ListComp | ast.GeneratorExp] = [*context.nodes(ast.ListComp)]
    comprehensions += context.nodes(ast.GeneratorExp)
    for comprehension in comprehensions:
        generator = comprehension.generators[0]
        if len(comprehension.generators) > 1 or subject(context, generator) is not wanted:
            continue
        often, hot = runs_often(context, comprehension)
        if often and (
            tensor_work(context, generator, [comprehension.elt]) or runs_target(generator, comprehension.elt)
        ):
            yield comprehension, generator, hot


def runs_target(loop: Loop, body: ast.AST) -> bool:
    """Whether what the loop gives is called: `head(x)` of `for head in self.heads`, `self.heads[i](x)`."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
            return True
        picked = node.func if isinstance(node, ast.Call) and node.args else None
        if isinstance(picked, ast.Subscript) and _mentions(picked.slice, names):
            return True
    return False


def hands_on(loop: ast.For) -> bool:
    """Whether a turn works on what the turn before has made: x = layer(x). Sums and lists are no such thing."""
    targets = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)} - targets
            read = {n.id for a in node.value.args for n in ast.walk(a) if isinstance(n, ast.Name)}
            called = last_name(node.value.func)
            is_made_before = any(is_made_above(loop, node, name) for name in made & read)
            if made & read and not is_made_before and called not in ("cat", "concat", "stack", "maximum", "minimum"):
                return True
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            name = last_name(node.targets[0]) if isinstance(node.targets[0], ast.Name) else ""
            sides = {last_name(node.value.left), last_name(node.value.right)}
            reads_itself = name in {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
            if name and reads_itself and name not in sides and not is_made_above(loop, node, name):
                return True
    return False


def is_made_above(loop: ast.For, node: ast.stmt, name: str) -> bool:
    """Whether the same turn has bound the name above a statement."""
    return any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) and n.lineno < node.lineno
        for n in ast.walk(loop)
    )
