"""DST105 checkpoint-on-every-rank: all processes write the same checkpoint to the same file.

Finds       `torch.save` in a module that sets up data parallelism, under no condition on the rank, there or in callers.
Why slow    Every rank copies the model to the CPU and writes it; they contend for the disk, and may tear the file.
Example     torch.save(model.module.state_dict(), "checkpoint.pt")
Instead     if dist.get_rank() == 0: torch.save(model.module.state_dict(), "checkpoint.pt")
Gain        of the time of a save, all but one part in the number of ranks of a node.
Fix         none: what else the branch must hold is not seen from here.
Source      PyTorch tutorial "Getting started with distributed data parallel", on checkpoints.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.processes import is_on_one_rank, runs_in_processes
from whet_audit.rule_context import RuleContext

CODE = "DST105"
NAME = "checkpoint-on-every-rank"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.02, "a save each few hundred steps on a shared disk")
_SHARDED = re.compile(r"fsdp|FullySharded|fully_shard|deepspeed|distributed\.checkpoint|expert|tensor_parallel|mpu\.")
_SMALL = re.compile(r"(^|[._])(args|config|cfg|opt)$")
_OWN_FILE = re.compile(r"rank|worker|process_index|tmp|temp|buffer|bytesio|\bf\b|shard", re.IGNORECASE)


def check(context: RuleContext) -> Iterator[Hit]:
    """Saves that nothing restricts to one rank."""
    if not runs_in_processes(context) or _SHARDED.search(context.module.text):
        return
    for call in context.calls_to("torch.save"):
        place = context.keyword(call, "f", 1)
        if place is None or _OWN_FILE.search(ast.unparse(place)) or is_on_one_rank(context, call):
            continue
        if context.has_star(call) or _SMALL.search(ast.unparse(call.args[0])):
            continue
        yield Hit(
            at=call,
            hot=context.hot(call),
            message=f"{context.shown(call)} is written by every rank, to the same place",
            confidence=Confidence.MEDIUM,
            gain=_GAIN,
        )
