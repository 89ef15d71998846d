"""DST101 ddp-without-bucket-view: DistributedDataParallel copies every gradient into its buckets and back.

Finds       `DistributedDataParallel(model, ...)` without `gradient_as_bucket_view=True`.
Why slow    Gradients live twice, and are copied to the communication buckets and back in every step.
Example     model = DistributedDataParallel(model, device_ids=[rank])
Instead     model = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
Gain        two copies of all gradients in a step; peak memory by the size of the gradients.
Fix         unsafe: gradients become views, on which `detach_()` raises: none where the program handles `.grad` itself.
Source      torch.nn.parallel.DistributedDataParallel; with a graph that never changes, `static_graph=True` helps too.
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Fix, Gain, Hit, Priority
from whet_audit.processes import wrappers_kept, wraps
from whet_audit.project_words import mentions
from whet_audit.rule_context import RuleContext

CODE = "DST101"
NAME = "ddp-without-bucket-view"
PRIORITY = Priority.LOW
_BY_HAND = r"\.grad\b|\.main_grad\b"
_GAIN = Gain(0.0, 0.03, "two copies of all gradients in a step")


def check(context: RuleContext) -> Iterator[Hit]:
    """Wraps that leave the option at its default."""
    if "gradient_as_bucket_view" not in context.module.text:
        for wrapper in wrappers_kept(context):
            message = "gradients are copied into buckets and back in every step"
            yield Hit(at=wrapper, message=message, confidence=Confidence.MEDIUM, gain=_GAIN)
    for call in wraps(context):
        if context.keyword(call, "gradient_as_bucket_view") is not None or context.has_star(call):
            continue
        yield Hit(
            at=call,
            message="gradients are copied into buckets and back in every step",
            confidence=Confidence.HIGH,
            gain=_GAIN,
            fix=None if mentions(context.project, context.module, _BY_HAND) else _as_views(context, call),
        )


def _as_views(context: RuleContext, call: ast.Call) -> Fix | None:
    title = "let gradients be views of the buckets"
    return context.set_keyword(call, "gradient_as_bucket_view", "True", title, safe=False)
