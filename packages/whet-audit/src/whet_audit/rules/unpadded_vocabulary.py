"""CMP111 unpadded-vocabulary: a language model's output layer of a width that tensor cores do not like.

Finds       A vocabulary of more than 4,000 tokens that is a constant and no multiple of 64 (50257, 30522), as the
            output width of an nn.Linear, or the size of an nn.Embedding that shares its weight with one.
Why slow    The largest matrix product of a small language model runs on padded or slower tiles.
Example     self.lm_head = nn.Linear(width, 50257, bias=False)
Instead     self.lm_head = nn.Linear(width, 50304, bias=False): 50257 rounded up; tokens never seen are never chosen.
Gain        up to a tenth of the step of a small model in half precision; nothing in float32 on a CPU.
Fix         none: saved weights have the old shape.
Source      NVIDIA "Matrix Multiplication Background User's Guide", on dimensions; nanoGPT pads 50257 to 50304.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.project_words import uses_half
from whet_audit.rule_context import RuleContext

CODE = "CMP111"
NAME = "unpadded-vocabulary"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.1, "a small language model in half precision on tensor cores")
_LEAST, _MULTIPLE = 4000, 64
_FIXED = re.compile(r"from_pretrained|PreTrainedModel|load_state_dict|load_weights|num_classes")


def check(context: RuleContext) -> Iterator[Hit]:
    """Output layers and tied embeddings of a constant size."""
    if not (uses_half(context.project, context.module) or context.mentions_gpu):
        return
    sizes = {context.source(size) for call, size in _sized(context, "Linear", 1, "out_features")}
    for name, position, keyword in (("Linear", 1, "out_features"), ("Embedding", 0, "num_embeddings")):
        for call, size in _sized(context, name, position, keyword):
            if name == "Embedding" and (context.source(size) in sizes or not _is_tied(context, call)):
                continue
            cls = context.class_of(call)
            if cls is not None and any(isinstance(b, str) and "PreTrained" in b for b in context.project.ancestry(cls)):
                continue
            value = context.constant(size)
            assert isinstance(value, int)
            yield Hit(
                at=call,
                message=f"{context.shown(call)}: {value} tokens, no multiple of {_MULTIPLE}",
                confidence=Confidence.LOW if _FIXED.search(context.module.text) else Confidence.MEDIUM,
                gain=_GAIN,
            )


def _sized(context: RuleContext, name: str, position: int, keyword: str) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Layers of a kind whose size is a known vocabulary of the wrong length."""
    for call in context.calls_to(f"torch.nn.{name}"):
        size = context.keyword(call, keyword, position)
        value = context.constant(size) if size is not None else None
        is_vocabulary = isinstance(value, int) and not isinstance(value, bool) and value > _LEAST
        if size is None or not is_vocabulary or not isinstance(value, int) or value % _MULTIPLE == 0:
            continue
        is_named = isinstance(size, ast.Constant) or re.search(r"vocab|n_?tokens?|dict", context.source(size), re.I)
        is_last = name == "Embedding" or re.search(
            r"head|vocab|logit|token|lm|decoder|out", _around(context, call), re.I
        )
        if is_named and is_last:
            yield call, size


def _around(context: RuleContext, call: ast.Call) -> str:
    """The statement that makes the layer: its names say what it is for."""
    return context.source(context.statement(call))


def _is_tied(context: RuleContext, call: ast.Call) -> bool:
    """Whether the class of an embedding gives its weight to another layer."""
    cls = context.class_of(call)
    return (
        cls is not None
        and re.search(r"\.weight\s*=\s*self\.|F\.linear\(.*\.weight", context.source(cls.node)) is not None
    )
