"""CMP110 unaligned-dimensions: hidden widths that are no multiple of 8, in half precision.

Finds       Constant widths of 33 or more that are no multiple of 8, as the output of one nn.Linear, Conv2d or Embedding
            and the input of another layer of the same class, where the program uses half precision; also the widths of
            MultiheadAttention and transformer layers. Widths that data fixes (inputs, classes) are left alone.
Why slow    Tensor cores take operands in blocks of 8 half-precision numbers; other widths are padded or run elsewhere.
Example     nn.Linear(512, 500); nn.Linear(500, 512)
Instead     nn.Linear(512, 512); nn.Linear(512, 512)
Gain        up to a tenth of the step, where such products are large; nothing in float32 or on a CPU.
Fix         none: it changes the model.
Source      NVIDIA "Matrix Multiplication Background User's Guide", tensor core requirements.
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.project_words import uses_half
from whet_audit.rule_context import RuleContext
from whet_audit.source import Class

CODE = "CMP110"
NAME = "unaligned-dimensions"
PRIORITY = Priority.LOW
PREVIEW = True
_GAIN = Gain(0.0, 0.1, "large products in half precision on tensor cores")
_LEAST, _MULTIPLE = 33, 8
_PLACES = {  # layer: (position and name of the input's width, of the output's)
    "Linear": ((0, "in_features"), (1, "out_features")),
    "Conv1d": ((0, "in_channels"), (1, "out_channels")),
    "Conv2d": ((0, "in_channels"), (1, "out_channels")),
    "Embedding": (None, (1, "embedding_dim")),
    "LSTM": ((0, "input_size"), (1, "hidden_size")),
    "GRU": ((0, "input_size"), (1, "hidden_size")),
}
_WIDTHS = {
    "MultiheadAttention": (0, "embed_dim"),
    "TransformerEncoderLayer": (0, "d_model"),
    "Transformer": (0, "d_model"),
}


def check(context: RuleContext) -> Iterator[Hit]:
    """Layers whose width only they and the next layer share."""
    if not uses_half(context.project, context.module):
        return
    inputs: dict[Class | None, set[int]] = {}
    outputs: list[tuple[ast.Call, int]] = []
    for name, (taken, given) in _PLACES.items():
        for call in context.calls_to(f"torch.nn.{name}"):
            width = _width(context, call, *taken) if taken is not None else None
            if width is not None:
                inputs.setdefault(context.class_of(call), set()).add(width)
            width = _width(context, call, *given)
            if width is not None:
                outputs.append((call, width))
    for call, width in outputs:
        if width in inputs.get(context.class_of(call), ()):
            yield _hit(context, call, width)
    for name, place in _WIDTHS.items():
        for call in context.calls_to(f"torch.nn.{name}"):
            width = _width(context, call, *place)
            if width is not None:
                yield _hit(context, call, width)


def _width(context: RuleContext, call: ast.Call, position: int, keyword: str) -> int | None:
    """The constant width at a place, where it is unaligned."""
    given = context.keyword(call, keyword, position)
    value = context.constant(given) if given is not None else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if value >= _LEAST and value % _MULTIPLE else None


def _hit(context: RuleContext, call: ast.Call, width: int) -> Hit:
    return Hit(
        at=call,
        message=f"{context.shown(call)}: a hidden width of {width}, no multiple of {_MULTIPLE}, in half precision",
        confidence=Confidence.MEDIUM,
        gain=_GAIN,
    )
