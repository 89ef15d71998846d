"""CMP115 loop-over-batch: a Python loop over the samples of a batch, a few small kernels for each.

Finds       `for i in range(len(x))`, `for b in range(batch_size)`, `for sample in x` of a tensor, and comprehensions
            like these, in hot code, whose body runs tensor operations on sample i.
Why slow    The work of one kernel over the batch becomes that of thousands of small ones, each with its launch.
Example     for i in range(x.shape[0]): out[i] = x[i, order[i]]
Instead     out = x.gather(1, order[..., None].expand_as(x)): index, gather, where, bmm or vmap over the batch.
Gain        the loop's share of the step, for large batches of small samples.
Fix         none: it depends on the body.
Source      PyTorch tutorial "torch.vmap"; PyTorch performance tuning guide.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.loop_subjects import Subject, independent_loops
from whet_audit.rule_context import RuleContext

CODE = "CMP115"
NAME = "loop-over-batch"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.4, "large batches; the loop's share of the step, nearly whole")
_TEXT = re.compile(r"decode|tokenize|encode|write|imshow|save|print|add_image|pil(low)?_|_pil|text", re.I)

_UNEVEN = re.compile(r"unique|nonzero|argwhere|masked_select")  # of each sample another length
_RAGGED = frozenset("pad_sequence pack_sequence nested_tensor as_nested_tensor unpad_sequence".split())


def check(context: RuleContext) -> Iterator[Hit]:
    """Loops and comprehensions over samples that do tensor work, but for those that write each sample out,
    or make samples of different lengths.
    """
    for node, loop, hot in independent_loops(context, Subject.BATCH):
        if any(_TEXT.search(_name(call)) for call in ast.walk(node) if isinstance(call, ast.Call)):
            continue
        if any(isinstance(up, ast.Call) and _name(up) in _RAGGED for up in context.ancestors(node)):
            continue
        called = [_name(call) for call in ast.walk(node) if isinstance(call, ast.Call)]
        if not isinstance(node, ast.For) and any(_UNEVEN.match(name) for name in called):
            continue
        yield Hit(
            at=node,
            hot=hot,
            message=(
                f"one row of a tensor after the other: for {context.shown(loop.target)} in {context.shown(loop.iter)}"
            ),
            confidence=Confidence.MEDIUM if hot is not None else Confidence.LOW,
            gain=_GAIN,
        )


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))
