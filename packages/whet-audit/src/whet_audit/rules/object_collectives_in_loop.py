"""DST108 object-collectives-in-loop: Python objects are pickled and sent between ranks in every step.

Finds       `all_gather_object`, `broadcast_object_list`, `gather_object` and `scatter_object_list` in a step loop.
Why slow    Each one pickles, sends sizes, waits for them on the CPU, sends bytes padded to the largest, and unpickles.
Example     for batch in loader: ...; dist.all_gather_object(losses, loss.item())
Instead     dist.all_reduce(loss) for tensors; gather objects once after the loop
Gain        a few milliseconds and two waits for the GPU in each step.
Fix         none.
Source      torch.distributed.all_gather_object, on its cost.
"""

from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext

CODE = "DST108"
NAME = "object-collectives-in-loop"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.01, 0.2, "steps of tens of milliseconds; nothing in one process")
_NAMES = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")
_LOOPS = (HeatKind.TRAINING, HeatKind.INFERENCE, HeatKind.TRAINING_STEP, HeatKind.GENERATION)


def check(context: RuleContext) -> Iterator[Hit]:
    """Collectives of objects that run in every step."""
    found = [*context.calls_to(*(f"torch.distributed.{name}" for name in _NAMES))]
    found += context.calls_to("accelerate.utils.gather_object", "accelerate.utils.broadcast_object_list")
    for call in found:
        hot = context.hot(call)
        if hot is None or hot.guard or hot.kind not in _LOOPS:
            continue
        if "object" in context.function_of(call).name:
            continue  # a wrapper of the collective: its callers are what counts
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} pickles and waits for all ranks in every step",
            confidence=Confidence.HIGH if hot.loop_line else Confidence.MEDIUM,
            gain=_GAIN,
            priority=None if hot.loop_line and not hot.via else Priority.LOW,
        )
