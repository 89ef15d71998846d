"""INF103 no-kv-cache: each new token runs the model over the whole sequence again.

Finds       a loop that appends a picked token to a sequence and gives the sequence, or its last window, to the model;
            `use_cache=False` given to `generate`.
Why slow    The keys and values of all earlier tokens are computed anew: work grows with the square of the length.
Example     for _ in range(n): logits = model(ids); ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
Instead     out = model(ids[:, -1:], past_key_values=past); past = out.past_key_values
Gain        most of the loop for hundreds of tokens on a CPU; little on a GPU that is bound by launches.
Fix         unsafe, for `use_cache=False` alone: sums are taken in another order.
Source      Transformers, "Caching"; Pope et al. 2022, "Efficiently scaling transformer inference".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Fix, Gain, Hit, Priority
from whet_audit.growth import Growth, growths
from whet_audit.hot_paths import INFERS
from whet_audit.invariance import sources_in
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext

CODE = "INF103"
NAME = "no-kv-cache"
PRIORITY = Priority.HIGH
PREVIEW = True
_GAIN = Gain(0.1, 0.85, "hundreds of tokens, on a device that is busy; less for short ones or where launches bound it")
_CACHED = re.compile(r"past|cache|mems|memory_state|incremental|hidden|(^|_)(kv|state|states|hx|lstm)($|_)", re.I)
_RUNS = ("forward", "decode", "decoder", "forward_one_step", "get_logits", "decode_step")


def check(context: RuleContext) -> Iterator[Hit]:
    """Generation loops that feed all they have, and calls that turn the cache off."""
    for keyword in context.nodes(ast.keyword):
        call = context.parent(keyword)
        is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg == "use_cache" and is_off and isinstance(call, ast.Call) and _is_generation(context, call):
            yield Hit(
                at=call,
                hot=context.hot(call),
                message=f"{context.shown(call.func)} runs the whole sequence for every token: use_cache=False",
                confidence=Confidence.HIGH,
                gain=_GAIN,
                fix=_with_cache(context, call),
            )
    seen: set[ast.AST] = set()
    for growth in growths(context):
        call_found = _full_run(context, growth)
        if call_found is not None and call_found not in seen:
            seen.add(call_found)
            yield Hit(
                at=call_found,
                hot=context.hot(call_found),
                message=f"{context.shown(call_found)} runs over all of {growth.name} again for each new token",
                confidence=Confidence.MEDIUM,
                gain=_GAIN,
            )


def _with_cache(context: RuleContext, call: ast.Call) -> Fix | None:
    """Only for a model of Transformers: what the project's own `generate` does with the cache is not known."""
    owner = context.value(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if owner is None or owner.kind is not Kind.MODEL or owner.cls is not None or "checkpointing" in context.module.text:
        return None
    return context.set_keyword(call, "use_cache", "True", "keep keys and values", safe=False)


def _is_generation(context: RuleContext, call: ast.Call) -> bool:
    return name_of(call) in ("generate", "greedy_search", "beam_search", "sample") and isinstance(
        call.func, ast.Attribute
    )


def _full_run(context: RuleContext, growth: Growth) -> ast.Call | None:
    """The model call of a token loop whose input is all that has grown; None where a cache is about."""
    calls = [node for node in ast.walk(growth.loop) if isinstance(node, ast.Call)]
    if not any(context.call_kind(call) is CallKind.PICK for call in calls):
        return None
    if any(_CACHED.search(word) for word in _words(growth)):
        return None
    runs = [call for call in calls if call is not growth.call and _runs_model(context, call)]
    if any(_is_last_token(context, argument) for call in runs for argument in call.args):
        return None  # the whole for the first token, the last one from then on
    for call in sorted(runs, key=lambda one: "emb" in name_of(one)):  # the model, rather than what embeds its tokens
        for argument in [*call.args, *(k.value for k in call.keywords)]:
            is_fed = growth.name in sources_in(context, argument, growth.loop)
            if is_fed and not _is_last_token(context, argument) and not _is_made_of(context, argument, growth):
                return call
    return None


def _runs_model(context: RuleContext, call: ast.Call) -> bool:
    if context.call_kind(call) is CallKind.MODEL:
        return True
    if name_of(call) not in _RUNS or not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    is_self = isinstance(owner, ast.Name) and owner.id == "self"
    is_model = context.is_model_class(context.class_of(call)) if is_self else context.kind(owner) is Kind.MODEL
    hot = context.hot(call)
    return is_model and (hot is None or hot.kind in INFERS)


def _words(growth: Growth) -> Iterator[str]:
    """The names and keywords of a loop: where one is of a cache, the loop has one."""
    for node in ast.walk(growth.loop):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr if node.attr not in ("last_hidden_state", "hidden_states", "hidden_size") else ""
        elif isinstance(node, ast.keyword) and node.arg:
            is_off = isinstance(node.value, ast.Constant) and not node.value.value
            yield "" if is_off else node.arg


def _is_last_token(context: RuleContext, argument: ast.expr) -> bool:
    """`ids[:, -1:]`, here or where the name was bound."""
    if isinstance(argument, ast.Name):
        bindings = context.function_of(argument).bindings.get(argument.id, ())
        return any(b.value is not None and b.how == "value" and _is_last_token(context, b.value) for b in bindings)
    text = ast.unparse(argument).replace(" ", "")
    return "-1:]" in text or ",-1]" in text or "[-1]" in text or (":-1" in text and "[:,-" not in text)


def _is_made_of(context: RuleContext, argument: ast.expr, growth: Growth) -> bool:
    """Whether the argument is the model's own output on its way to the next token, as for a value head."""
    names = {node.id for node in ast.walk(argument) if isinstance(node, ast.Name)}
    bound = context.function_of(argument).bindings
    inside = set(ast.walk(growth.loop))
    for name in names - {growth.name}:
        for binding in bound.get(name, ()):
            if binding.node in inside and isinstance(binding.value, ast.Call) and _runs_model(context, binding.value):
                return True
    return False
