"""CMP104 loop-over-heads: one small matrix product for each head, codebook or group, one after the other.

Finds       A loop or comprehension over `self.heads`, `range(num_heads)` and their like in hot code, whose body runs a
            layer or tensor operations on the same input for each, without handing one's result to the next.
Why slow    Heads are small: each product fills a fraction of the machine and costs a launch of its own.
Example     out = torch.cat([head(x) for head in self.heads], dim=-1)
Instead     One Linear of all heads' widths and a view to (..., heads, width); bmm or einsum over a head dimension.
Gain        up to most of the loop's time with many small heads; little with few large ones.
Fix         none: parameters change their layout.
Source      Vaswani et al. 2017, "Attention Is All You Need": heads as one product; torch.bmm.
"""

from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.loop_subjects import Subject, independent_loops
from whet_audit.rule_context import RuleContext

CODE = "CMP104"
NAME = "loop-over-heads"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.2, "many small heads; a loop that is a good part of the step")


def check(context: RuleContext) -> Iterator[Hit]:
    """Loops and comprehensions over heads that do tensor work."""
    for node, loop, hot in independent_loops(context, Subject.HEADS):
        yield Hit(
            at=node,
            hot=hot,
            message=f"one head after the other: for {context.shown(loop.target)} in {context.shown(loop.iter)}",
            confidence=Confidence.MEDIUM if hot is not None else Confidence.LOW,
            gain=_GAIN,
        )
