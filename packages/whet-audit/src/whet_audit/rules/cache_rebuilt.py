"""INF104 cache-rebuilt: the key/value cache is copied whole, or made anew, for every token.

Finds       `torch.cat([past_k, k])` in an attention's forward pass or a generation loop, caches made or reordered by
            `index_select` inside the loop.
Why slow    Each token allocates and copies the keys and values of all tokens before it, in every layer.
Example     k = torch.cat([past_key_value[0], k], dim=2)
Instead     a buffer of the full length, written at the token's position: `cache_k[:, :, pos] = k`.
Gain        a few hundredths for short sequences, up to a third for long ones or large batches.
Fix         none: the buffer needs a length and a place.
Source      Transformers, "Static cache"; PyTorch blog, "Accelerating generative AI with PyTorch II".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, HotPath, Priority
from whet_audit.growth import loop_around
from whet_audit.hot_paths import HeatKind
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext

CODE = "INF104"
NAME = "cache-rebuilt"
PRIORITY = Priority.MEDIUM
_GAIN = Gain(0.0, 0.3, "long sequences or large batches, decoded token by token")
_PAST = re.compile(r"(^|[._\[])((layer_)?past\w*|\w*cache\w*|prev_(k|v|key|value)\w*|k_past|v_past)")
_KEYS = re.compile(r"(^|_|\.)(k|v|ks|vs|key|value|keys|values)\w{0,9}(_|$)|(key|value)s?_?(states?|layer)?", re.I)
_NOT = re.compile(r"mask|ids|position|length|tokens|logits|input|scores|feature|conv|image|file", re.I)
_MAKERS = ("DynamicCache", "StaticCache", "KVCache", "EncoderDecoderCache", "QuantizedCache", "HybridCache")


def check(context: RuleContext) -> Iterator[Hit]:
    """Concatenations to a cache, caches made in a generation loop, and caches reordered there."""
    for call in context.calls("cat", "concat", "concatenate"):
        if _appends(context, call):
            yield from _hit(context, call, f"{context.shown(call)} copies the whole cache for each token")
    for call in context.calls(*_MAKERS):
        hot = context.hot(call)
        if loop_around(context, call) is not None and hot is not None and hot.kind == HeatKind.GENERATION:
            yield from _hit(context, call, f"{context.shown(call)} starts an empty cache for each token")
    for call in context.calls("index_select"):
        hot = context.hot(call)
        is_of_cache = isinstance(call.func, ast.Attribute) and _is_past_loop(context, call)
        if is_of_cache and hot is not None and hot.kind == HeatKind.GENERATION:
            yield from _hit(context, call, f"{context.shown(call)} copies the cache in another order for each token")


def _hit(context: RuleContext, call: ast.Call, message: str) -> Iterator[Hit]:
    hot = context.hot(call)
    if hot is not None and (hot.guard or hot.kind == HeatKind.DATA):
        return
    yield Hit(
        at=call,
        hot=hot,
        message=message,
        confidence=Confidence.MEDIUM if _is_generation(hot) else Confidence.LOW,
        gain=_GAIN,
        priority=None if _is_generation(hot) else Priority.LOW,
    )


def _is_generation(hot: HotPath | None) -> bool:
    return hot is not None and hot.kind == HeatKind.GENERATION


def _appends(context: RuleContext, call: ast.Call) -> bool:
    """Whether it puts new keys or values behind those of the past."""
    parts = call.args[0].elts if call.args and isinstance(call.args[0], ast.Tuple | ast.List) else []
    if len(parts) != 2 or not (context.dotted(call.func) or "").startswith("torch."):
        return False
    first, second = ast.unparse(parts[0]), ast.unparse(parts[1])
    if _PAST.search(first) is None or _NOT.search(first) or _NOT.search(second):
        return False
    return _KEYS.search(second) is not None


def _is_past_loop(context: RuleContext, call: ast.Call) -> bool:
    for up in context.ancestors(call):
        generators = up.generators if isinstance(up, ast.ListComp | ast.GeneratorExp) else []
        if any(_PAST.search(ast.unparse(generator.iter)) for generator in generators):
            return True
        if isinstance(up, ast.For) and _PAST.search(ast.unparse(up.iter)):
            return True
        if isinstance(up, ast.Assign):
            return _PAST.search(ast.unparse(up.targets[0])) is not None and name_of(call) == "index_select"
    return False
