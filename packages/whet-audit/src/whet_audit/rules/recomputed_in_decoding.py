"""INF108 recomputed-in-decoding: an encoder runs again in every decoding or denoising step, on what never changes.

Finds       encoders, tokenizers and `set_timesteps` whose arguments stay the same in an inference or generation loop;
            encoder-decoder models given the source again for every token.
Why slow    The result of the first round is that of all rounds.
Example     for t in timesteps: cond = text_encoder(prompt_ids); x = unet(x, t, cond)
Instead     cond = text_encoder(prompt_ids) before the loop
Gain        the encoder's share of the step: a tenth or so beside a large decoder, half beside a small one.
Fix         none: where it moves to depends on what else the loop does.
Source      Vaswani et al. 2017, on encoder and decoder; Transformers, `encoder_outputs`.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.growth import growths, loop_around
from whet_audit.hot_paths import INFERS, TRAINS, HeatKind
from whet_audit.invariance import changed_in, is_invariant
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import LoopNode

CODE = "INF108"
NAME = "recomputed-in-decoding"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.02, 0.5, "an encoder of a tenth to the whole of the decoder's size")
_ENCODES = re.compile(
    r"^((\w*_)?encoder\w*|encode\w*|get_\w*(embeds?|embeddings?|features)|(\w*_)?tokenizer|tokenize|set_timesteps|embed_text|"
    r"text_model|vision_model|clip|(\w*_)?image_encoder|forward_encoder|get_encoder_outputs?)$"
)
_TIMED = re.compile(r"perf_counter|time\.time\(|benchmark|warm_?up|Event\(|profil|timeit", re.IGNORECASE)


def check(context: RuleContext) -> Iterator[Hit]:
    """Loop-invariant encoder calls in step loops, and sources given with every token."""
    changed: dict[LoopNode, set[str]] = {}
    for call in context.nodes(ast.Call):
        name = name_of(call)
        if _ENCODES.match(name) is None or (isinstance(context.parent(call), ast.Expr) and name != "set_timesteps"):
            continue
        loop = loop_around(context, call)
        hot = context.hot(call) if loop is not None else None
        if loop is None or hot is None or hot.guard or hot.kind not in INFERS | {HeatKind.TRAINING} or hot.via:
            continue
        if (hot.kind in TRAINS and not _is_frozen(context, call)) or _TIMED.search(
            context.source(context.function_of(call).node)
        ):
            continue
        if (not call.args and not call.keywords) or not _is_model_or_text(context, call):
            continue
        if is_invariant(context, call, loop, changed.setdefault(loop, changed_in(loop))) and not _is_first_only(
            context, call
        ):
            yield Hit(
                at=call,
                hot=hot,
                message=f"{context.shown(call)} gives the same in every round of the loop",
                confidence=Confidence.MEDIUM,
                gain=_GAIN,
            )
    yield from _sources(context)


def _is_frozen(context: RuleContext, call: ast.Call) -> bool:
    """In training, an encoder may learn: only tokenizers and what runs under no_grad stay the same."""
    name = name_of(call)
    under = any(isinstance(up, ast.With) and "no_grad" in context.source(up.items[0]) for up in context.ancestors(call))
    return "token" in name or under


def _is_model_or_text(context: RuleContext, call: ast.Call) -> bool:
    name = name_of(call)
    is_text_method = name in ("encode", "decode") and isinstance(call.func, ast.Attribute)
    if is_text_method and isinstance(call.func, ast.Attribute):
        return "token" in ast.unparse(call.func.value) or context.hot_paths.runs_model(call, context.module)
    return True


def _is_first_only(context: RuleContext, call: ast.Call) -> bool:
    """Whether it is computed where it is missing: `if cond is None: cond = encoder(x)`."""
    for up in context.ancestors(call):
        if isinstance(up, ast.For | ast.While):
            return False
        if isinstance(up, ast.If | ast.IfExp):
            return True
    return False


def _sources(context: RuleContext) -> Iterator[Hit]:
    """`model(src, ids)` for each token, where ids grow and src stays."""
    for growth in growths(context):
        for call in (node for node in ast.walk(growth.loop) if isinstance(node, ast.Call)):
            if context.call_kind(call) is not CallKind.MODEL:
                continue
            given = {k.arg: k.value for k in call.keywords if k.arg}
            decoded = given.get("decoder_input_ids", given.get("tgt"))
            source = given.get("input_ids", given.get("src", call.args[0] if call.args else None))
            if decoded is None and len(call.args) >= 2 and _is_source(call.args[0]):
                source, decoded = call.args[0], call.args[1]
            if decoded is None or source is None or "encoder_outputs" in given:
                continue
            if growth.name in ast.unparse(decoded) and is_invariant(context, source, growth.loop):
                yield Hit(
                    at=call,
                    hot=context.hot(call),
                    message=f"{context.shown(call)} encodes {context.shown(source)} again for each token",
                    confidence=Confidence.MEDIUM,
                    gain=_GAIN,
                )


def _is_source(argument: ast.expr) -> bool:
    return re.fullmatch(r"(\w+\.)?(src\w*|source\w*|encoder_input\w*)", ast.unparse(argument)) is not None
