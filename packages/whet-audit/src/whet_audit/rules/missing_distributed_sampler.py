"""DST107 missing-distributed-sampler: every rank of a data-parallel run goes through the whole data set.

Finds       a shuffled DataLoader without a sampler in a module that wraps its model in DistributedDataParallel, where
            no sampler, shard or rank is used for data anywhere.
Why slow    With n ranks an epoch takes n times the steps it needs.
Example     loader = DataLoader(dataset, shuffle=True); model = DistributedDataParallel(model)
Instead     loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
Gain        (n - 1) / n of an epoch on n ranks.
Fix         none: `set_epoch` has to be called as well.
Source      torch.utils.data.distributed.DistributedSampler.
"""

import re
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.processes import wraps
from whet_audit.rule_context import RuleContext

CODE = "DST107"
NAME = "missing-distributed-sampler"
PRIORITY = Priority.HIGH
PREVIEW = True
_GAIN = Gain(0.3, 0.8, "of an epoch, on two to five ranks")
_SHARES = re.compile(
    r"Sampler|sampler|\.shard\(|split_dataset|num_replicas|split_by_node|accelerat|IterableDataset|\[rank::"
)


def check(context: RuleContext) -> Iterator[Hit]:
    """Loaders of modules that wrap a model themselves."""
    if not any(True for _ in wraps(context)) or _SHARES.search(context.module.text):
        return
    for call in context.calls_to("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"):
        shuffle = context.keyword(call, "shuffle", 2)
        if context.has_star(call) or context.constant(shuffle) is not True:
            continue
        yield Hit(
            at=call,
            message=f"{context.shown(call)} gives every rank the whole data set",
            confidence=Confidence.MEDIUM,
            gain=_GAIN,
        )
