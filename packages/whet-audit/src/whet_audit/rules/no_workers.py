"""DAT102 no-workers: a loader that reads and prepares every batch in the training process itself.

Finds       DataLoader without `num_workers`, or with 0, also as the default of an option.
Why slow    Reading, decoding and collating run between the steps, while the GPU has nothing to do.
Example     loader = DataLoader(images, batch_size=64, shuffle=True)
Instead     loader = DataLoader(images, batch_size=64, shuffle=True, num_workers=4, persistent_workers=True)
Gain        up to the share of the step spent waiting for data; nothing for a few tensors that lie in memory.
Fix         unsafe: random augmentation draws other numbers, and datasets must be picklable where workers are spawned.
            Only of datasets that are known to hand out samples by their index and that nothing changes meanwhile: each
            worker has a copy, so an IterableDataset would give every sample several times, and a queue none.
Source      PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.finding import AddImport, Confidence, Edit, Fix, Gain, Hit, Priority, SetKeyword
from whet_audit.loader_setup import Loader, is_in_memory, loaders
from whet_audit.map_style import is_fixed, is_unguarded
from whet_audit.reasons import has_comment
from whet_audit.rule_context import RuleContext, is_known

CODE = "DAT102"
NAME = "no-workers"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.5, "up to the share of the step spent on reading and preparing data in the main process")
_OF_ONE_PROCESS = re.compile(r"cuda|device|\bglobal\b|model|queue|lock")
_NUM_WORKERS = "min(4, os.cpu_count() or 1)"


def check(context: RuleContext) -> Iterator[Hit]:
    """Loaders whose workers are known to be none, unless their dataset lies in memory ready to use."""
    for loader in loaders(context):
        workers = loader.arguments.get("num_workers")
        if workers is None and not loader.is_complete:
            continue
        if workers is not None and not _is_zero(context.constant(workers)):
            continue
        is_of_graphs = "torch_geometric" in (context.dotted(loader.call.func) or "")  # collating these is the work
        if is_in_memory(context, loader.arguments.get("dataset")) and not is_of_graphs:
            continue
        if set(loader.arguments) == {"dataset", "batch_sampler"}:
            continue
        is_default = workers is not None and not isinstance(workers, ast.Constant)
        words = f"{context.shown(workers)} is 0 by default" if workers is not None and is_default else "no workers"
        yield Hit(
            at=loader.call,
            hot=context.hot(loader.call) if loader.hot_loop is None else None,
            message=f"{words}: batches of {loader.name or 'this loader'} are made in the main process, between steps",
            confidence=Confidence.MEDIUM if loader.use and not is_default else Confidence.LOW,
            priority=Priority.LOW if loader.use == "evaluation" or is_default else None,
            gain=_GAIN,
            fix=None if is_default or _has_reason(context, workers) else _with_workers(context, loader),
        )


def _has_reason(context: RuleContext, workers: ast.expr | None) -> bool:
    return workers is not None and has_comment(context.module, workers)


def _is_zero(value: object) -> bool:
    return is_known(value) and value == 0 and not isinstance(value, bool)


def _may_run_elsewhere(context: RuleContext, loader: Loader) -> bool:
    """Whether processes of their own, each with a copy, can do what the dataset and the collating do."""
    if not is_fixed(context, loader.arguments.get("dataset")) or is_unguarded(context, loader.call):
        return False
    collate = loader.arguments.get("collate_fn")
    if collate is None:
        return True
    dotted = context.dotted(collate)
    function = context.project.function_at(dotted) if dotted is not None else None
    if function is None or function.parent is not function.module.top or function.cls is not None:
        return False
    return _OF_ONE_PROCESS.search(function.module.source_of(function.node)) is None


def _with_workers(context: RuleContext, loader: Loader) -> Fix | None:
    if any(keyword.arg is None for keyword in loader.call.keywords) or len(loader.call.args) > 5:
        return None
    if context.module.imports.get("os", "os") != "os" or not _may_run_elsewhere(context, loader):
        return None
    at = context.span(loader.call)
    edits: list[Edit] = [SetKeyword(at, "num_workers", _NUM_WORKERS)]
    if "persistent_workers" not in loader.arguments and loader.is_repeated is True:
        edits.append(SetKeyword(at, "persistent_workers", "True"))
    return Fix("load in worker processes", False, (*edits, AddImport("os")))
