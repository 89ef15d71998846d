"""MOV101 blocking-transfer: a copy to the GPU in a step loop that the CPU waits for.

Finds       `x.to(device)`, `x.cuda()` or `x.type(torch.cuda.FloatTensor)` of a batch in a step loop or in what it
            calls, without `non_blocking=True`. Where the loader pins its memory, it is MOV103's.
Why slow    The CPU stands still for the length of the copy instead of queueing the next kernels.
Example     for x, y in loader: x = x.to(device)
Instead     for x, y in loader: x = x.to(device, non_blocking=True)
Gain        copy time / step time, at most; nothing from pageable memory (see MOV102) or on a CPU.
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

CODE = "MOV101"
NAME = "blocking-transfer"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.3, "up to the share of the step spent copying, with pinned memory; nothing on a CPU")


def check(context: RuleContext) -> Iterator[Hit]:
    """Copies of batches to a device which may be a GPU."""
    for call, moved in blocking_copies(context):
        hot = step_of(context, call)
        if hot is None or is_from_pinned(context, call):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} waits for the copy in every step",
            confidence=Confidence.MEDIUM if context.value(moved).is_sure and hot.loop_line else Confidence.LOW,
            gain=_GAIN,
            fix=queued(context, call, moved),
        )
