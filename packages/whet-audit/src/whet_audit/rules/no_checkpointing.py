"""MEM105 no-checkpointing: a deep stack of blocks is trained with all activations of all blocks kept.

Finds       a ModuleList or Sequential of 12 or more equal blocks in a project that trains and nowhere checkpoints.
Why slow    Activations of every block wait for the backward pass. They, not the weights, bound the batch.
Example     self.blocks = nn.ModuleList([Block(d) for _ in range(24)])
Instead     x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
Gain        memory for activations by about the depth of the stack, for a quarter to a third more time: pays only where
            the larger batch is faster per sample.
Fix         none: it needs a switch, and a decision.
Source      Chen et al. 2016, "Training deep nets with sublinear memory cost"; torch.utils.checkpoint.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext

CODE = "MEM105"
NAME = "no-checkpointing"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.1, "memory bounds the batch, and a larger batch is faster per sample")
_FEWEST = 12
_BLOCK = re.compile(r"(Block|Layer|Attention|Residual|Decoder|Encoder|Transformer)", re.IGNORECASE)
_WORDS = (
    "utils.checkpoint",
    "checkpoint_sequential",
    "gradient_checkpoint",
    "activation_checkpoint",
    "checkpoint_wrapper",
)


def check(context: RuleContext) -> Iterator[Hit]:
    """Lists of blocks made by a comprehension over a known range."""
    for call in context.calls("ModuleList", "Sequential"):
        made = call.args[0] if call.args else None
        inner = made.value if isinstance(made, ast.Starred) else made
        if not isinstance(inner, ast.ListComp | ast.GeneratorExp) or not isinstance(inner.elt, ast.Call):
            continue
        num_blocks = _rounds(context, inner)
        if (
            num_blocks < _FEWEST
            or not _is_deep_block(context, inner.elt)
            or not context.is_model_class(context.class_of(call))
        ):
            continue
        if not _trains(context) or _checkpoints(context):
            continue
        yield Hit(
            at=call,
            hot=None,
            message=f"{num_blocks} × {context.shown(inner.elt.func)} keep all their activations for the backward pass",
            confidence=Confidence.LOW,
            gain=_GAIN,
        )


def _rounds(context: RuleContext, comprehension: ast.ListComp | ast.GeneratorExp) -> int:
    over = comprehension.generators[0].iter
    if len(comprehension.generators) != 1 or not isinstance(over, ast.Call) or len(over.args) != 1:
        return 0
    last = context.constant(over.args[0]) if getattr(over.func, "id", "") == "range" else 0
    return last if isinstance(last, int) else 0


def _is_deep_block(context: RuleContext, made: ast.Call) -> bool:
    """Whether it is a block of several layers, not a lone Linear."""
    dotted = context.dotted(made.func) or ""
    name = ast.unparse(made.func).rpartition(".")[2]
    if dotted.startswith("torch.nn."):
        return "Transformer" in name
    return _BLOCK.search(name) is not None and "Norm" not in name and "Embed" not in name


def _trains(context: RuleContext) -> bool:
    return HeatKind.TRAINING in context.hot_paths.loops.values()


def _checkpoints(context: RuleContext) -> bool:
    return any(word in module.text for module in context.project.modules for word in _WORDS)
