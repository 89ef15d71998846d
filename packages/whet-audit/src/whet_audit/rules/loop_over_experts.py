"""CMP116 loop-over-experts: the experts of a mixture run one after the other.

Finds       A loop or comprehension over `self.experts` or `range(num_experts)` in hot code that runs a layer or tensor
            operations for each.
Why slow    Every expert sees few tokens, costs several launches, and finding its tokens waits for the GPU.
Example     for i, expert in enumerate(self.experts): out[index[i]] += expert(x[index[i]])
Instead     Weights as one tensor (experts, in, out): sort tokens by expert and use a grouped product, or bmm.
Gain        up to half of the layer's time with many experts; little with two or three.
Fix         none: parameters change their layout.
Source      Gale et al. 2022, "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts".
"""

from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.loop_subjects import Subject, independent_loops
from whet_audit.rule_context import RuleContext

CODE = "CMP116"
NAME = "loop-over-experts"
PRIORITY = Priority.MEDIUM
_GAIN = Gain(0.0, 0.4, "eight experts or more, few tokens for each")


def check(context: RuleContext) -> Iterator[Hit]:
    """Loops and comprehensions over experts that do tensor work."""
    for node, loop, hot in independent_loops(context, Subject.EXPERTS):
        yield Hit(
            at=node,
            hot=hot,
            message=f"one expert after the other: for {context.shown(loop.target)} in {context.shown(loop.iter)}",
            confidence=Confidence.MEDIUM if hot is not None else Confidence.LOW,
            gain=_GAIN,
        )
