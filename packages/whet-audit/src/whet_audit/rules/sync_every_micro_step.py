"""DST103 sync-every-micro-step: gradients are all-reduced in every micro-step though only the n-th is applied.

Finds       gradient accumulation in a module or project that uses DistributedDataParallel and has no `no_sync()`.
Why slow    Each backward pass sends all gradients over the network; all but the last of n sends are for nothing.
Example     (loss / n).backward(); if step % n == 0: optimizer.step()
Instead     with model.no_sync() if step % n else nullcontext(): (loss / n).backward()
Gain        up to (n - 1) / n of the communication that the backward pass does not hide.
Fix         none: the forward pass has to go under the same context.
Source      torch.nn.parallel.DistributedDataParallel.no_sync.
"""

from collections.abc import Iterator

from whet_audit.accumulation import accumulations
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.processes import wraps
from whet_audit.rule_context import RuleContext

CODE = "DST103"
NAME = "sync-every-micro-step"
PRIORITY = Priority.HIGH
_GAIN = Gain(0.0, 0.4, "several nodes, or cards without a fast link between them")
_SKIPS = ("no_sync", "require_backward_grad_sync", ".accumulate(", "set_requires_gradient_sync", "no_backward_sync")


def check(context: RuleContext) -> Iterator[Hit]:
    """The backward pass of each micro-step in accumulating loops."""
    for found in accumulations(context):
        wraps_itself = any(True for _ in wraps(context))
        modules = [context.module] if wraps_itself else context.project.modules
        if not (wraps_itself or _is_data_parallel(context)) or any(word in m.text for m in modules for word in _SKIPS):
            continue
        call = found.backwards[0]
        yield Hit(
            at=call,
            hot=context.hot(call),
            message=f"{context.shown(call)} all-reduces in each of {context.shown(found.every)} micro-steps",
            confidence=Confidence.HIGH if wraps_itself else Confidence.MEDIUM,
            gain=_GAIN,
        )


def _is_data_parallel(context: RuleContext) -> bool:
    return any(
        "DistributedDataParallel(" in module.text or " DDP(" in module.text for module in context.project.modules
    )
