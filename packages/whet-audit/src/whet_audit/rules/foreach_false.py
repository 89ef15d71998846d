"""CMP107 foreach-false: an optimiser or a clipping of gradients told to go through parameters one by one.

Finds       `foreach=False` given to an optimiser of torch or to clip_grad_norm_, clip_grad_value_, get_total_norm,
            without `fused=True` beside it.
Why slow    Each parameter gets kernels of its own: hundreds of launches where a handful would do.
Example     torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
Instead     torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
Gain        most of the call's time on a GPU; nothing on a CPU.
Fix         unsafe: needs memory for one more copy of the parameters at the peak, and rounds in another order. None
            beside a comment or distributed tensors, with which it was turned off for a reason.
Source      torch.optim documentation, "foreach implementation".
"""

from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.project_words import says
from whet_audit.rule_context import RuleContext

CODE = "CMP107"
NAME = "foreach-false"
PRIORITY = Priority.LOW
PREVIEW = True
_GAIN = Gain(0.0, 0.1, "a GPU and hundreds of parameters; nothing on a CPU")
_OPTIMISERS = "Adam AdamW SGD Adagrad RMSprop Adadelta Adamax NAdam RAdam ASGD Rprop Adafactor".split()
_NAMES = (
    *(f"torch.optim.{name}" for name in _OPTIMISERS),
    *(
        f"torch.nn.utils.{place}{name}"
        for name in ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")
        for place in ("", "clip_grad.")
    ),
)


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls with foreach=False."""
    for call in context.calls_to(*_NAMES):
        given = context.keyword(call, "foreach")
        if given is None or context.constant(given) is not False:
            continue
        if (
            context.constant(context.keyword(call, "fused")) is True
            or context.constant(context.keyword(call, "capturable")) is True
        ):
            continue
        yield Hit(
            at=call,
            hot=context.hot(call),
            message=f"{context.shown(call.func)} goes through the parameters one by one",
            confidence=Confidence.LOW
            if says(context.project, context.module, "DTensor", "dtensor")
            else Confidence.HIGH,
            gain=_GAIN,
            fix=None
            if says(context.project, context.module, "DTensor", "dtensor", "fully_shard")
            else context.remove_keyword(call, "foreach", "let all parameters go together", safe=False),
        )
