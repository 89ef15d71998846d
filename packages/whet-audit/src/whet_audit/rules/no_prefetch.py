"""MOV107 no-prefetch: loading, copying and computing take turns, where they could run beside each other.

Finds       a training loop over a DataLoader without workers and without pinned memory, which copies its batch with a
            blocking `.to(device)` or `.cuda()` at its top.
Why slow    The GPU idles while the CPU makes the next batch, and the CPU waits while it is copied.
Example     for x, y in DataLoader(data): x, y = x.cuda(), y.cuda(); ...
Instead     DataLoader(data, num_workers=4, pin_memory=True, prefetch_factor=2) and non_blocking=True
Gain        up to the time of loading and copying; measure the share of the step that waits for data first.
Fix         none: how many workers pay depends on the machine.
Source      PyTorch documentation, torch.utils.data, "Multi-process data loading"; tutorial on pin_memory().
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.loaders import Pinned, loader_of, pinned
from whet_audit.rule_context import RuleContext
from whet_audit.transfers import follows_tensor, transfers

CODE = "MOV107"
NAME = "no-prefetch"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.3, "up to the share of the step in which the GPU waits for data; nothing on a CPU")
_TOP = 4  # statements


def check(context: RuleContext) -> Iterator[Hit]:
    """Training loops over a loader that is set up here, and whose batch is copied first of all."""
    for loop in context.loops(HeatKind.TRAINING):
        if not isinstance(loop, ast.For):
            continue
        made = loader_of(context, loop.iter)
        if made is None or context.has_star(made) or pinned(context, made) is not Pinned.NO:
            continue
        workers = context.keyword(made, "num_workers", 5)
        if workers is not None and context.constant(workers) != 0:
            continue
        copies = [
            call
            for call, _ in transfers(context)
            if context.keyword(call, "non_blocking", 1) is None
            and not follows_tensor(context, call)
            and any(call in ast.walk(statement) for statement in loop.body[:_TOP])
        ]
        hot = context.hot(copies[0]) if copies else None
        if hot is None or hot.guard:
            continue
        yield Hit(
            at=loop.iter,
            hot=hot,
            message=f"loading {context.shown(loop.iter)}, {context.shown(copies[0])} and the step take turns",
            confidence=Confidence.LOW,
            gain=_GAIN,
        )
