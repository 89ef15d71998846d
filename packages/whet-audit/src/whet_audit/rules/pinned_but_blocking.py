"""MOV103 pinned-but-blocking: the loader pins its memory, but the copy to the GPU waits all the same.

Finds       `x.to(device)` or `x.cuda()` without `non_blocking=True` of a batch whose DataLoader has pin_memory=True.
Why slow    The memory is pinned so that the copy can run beside the kernels; without non_blocking the CPU waits for it.
Example     loader = DataLoader(data, pin_memory=True) ... for x, y in loader: x = x.to(device)
Instead     for x, y in loader: x = x.to(device, non_blocking=True)
Gain        up to the share of the step spent copying; nothing on a CPU.
Fix         safe where a tensor of a DataLoader's batch surely goes to CUDA, or to the CPU where there is none: the
            stream orders the copy before the kernels that read it. Unsafe where that is only likely. None where the
            object may be no tensor, or where the copy may go to the CPU (which may read too early) or to MPS.
Source      PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()".
"""

from collections.abc import Iterator

from whet_audit.copies import queued
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.loaders import is_from_pinned
from whet_audit.rule_context import RuleContext
from whet_audit.transfers import blocking_copies, step_of

CODE = "MOV103"
NAME = "pinned-but-blocking"
PRIORITY = Priority.HIGH
PREVIEW = True
_GAIN = Gain(0.0, 0.3, "up to the share of the step spent copying; nothing on a CPU")


def check(context: RuleContext) -> Iterator[Hit]:
    """The copies that MOV101 leaves out."""
    for call, moved in blocking_copies(context):
        hot = step_of(context, call)
        if hot is None or not is_from_pinned(context, call):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} waits for the copy in every step, though the loader pins its memory",
            confidence=Confidence.HIGH if context.value(moved).is_sure and hot.loop_line else Confidence.MEDIUM,
            gain=_GAIN,
            fix=queued(context, call, moved),
        )
