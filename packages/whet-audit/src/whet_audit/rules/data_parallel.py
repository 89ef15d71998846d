"""DST106 data-parallel: several GPUs in one process, through nn.DataParallel.

Finds       `nn.DataParallel(model)`.
Why slow    Every step copies the model to each GPU, scatters the batch, gathers outputs and gradients on the first one,
            and all GPUs are driven by threads that share one interpreter lock.
Example     model = nn.DataParallel(model).cuda()
Instead     torchrun with DistributedDataParallel(model, device_ids=[local_rank])
Gain        a tenth to half of a step with two or more GPUs; nothing with one.
Fix         none: the script has to be started in several processes.
Source      torch.nn.DataParallel, which recommends DistributedDataParallel even on one machine.
"""

from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

CODE = "DST106"
NAME = "data-parallel"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.5, "two or more GPUs; nothing with one")


def check(context: RuleContext) -> Iterator[Hit]:
    """Wraps in DataParallel, the first of each function."""
    seen: set[Function] = set()
    for call in context.calls_to(
        "torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel"
    ):
        if context.function_of(call) in seen:
            continue
        seen.add(context.function_of(call))
        yield Hit(
            at=call,
            message=f"{context.shown(call)} copies the model to every GPU in every step, from one process",
            confidence=Confidence.HIGH,
            gain=_GAIN,
        )
