"""DAT103 no-persistent-workers: loader processes that end with every epoch and are started anew for the next.

Finds       A loader with workers that is iterated over once per epoch, without `persistent_workers`.
Why slow    Each epoch begins with new processes, which import, unpickle the dataset and fill the queue.
Example     loader = DataLoader(images, batch_size=64, num_workers=8)
Instead     loader = DataLoader(images, batch_size=64, num_workers=8, persistent_workers=True)
Gain        seconds per epoch; counts where epochs are short or workers are spawned.
Fix         unsafe: workers keep their random state, and do not see what is changed in the dataset between epochs:
            none where the program shows such a change, nor for loaders that are not torch's own.
Source      PyTorch documentation, torch.utils.data.DataLoader, `persistent_workers`.
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Fix, Gain, Hit, Priority
from whet_audit.loader_setup import Loader, loaders
from whet_audit.loaders import loader_calls
from whet_audit.project_words import mentions
from whet_audit.rule_context import RuleContext, is_known

CODE = "DAT103"
NAME = "no-persistent-workers"
PRIORITY = Priority.LOW
_CHANGED = r"set_epoch|\.dataset\.\w+ *[-+*]?=[^=]|\.dataset\.\w+\(|(train|val|test)_?(data|dataset|set)\.\w+ *="
_GAIN = Gain(0.0, 0.1, "start of the workers / length of an epoch")


def check(context: RuleContext) -> Iterator[Hit]:
    """Loaders with workers, or with a number of them that the caller chooses."""
    for loader in loaders(context, also_like_loaders=True):
        workers = loader.arguments.get("num_workers")
        if workers is None or not loader.is_complete or "persistent_workers" in loader.arguments:
            continue
        number = context.constant(workers)
        if loader.is_repeated is False or (is_known(number) and not number):
            continue
        if _is_made_anew(context, loader):
            continue
        if loader.use == "evaluation" and loader.is_repeated is None and not _is_kept(context, loader):
            continue
        is_sure = loader.is_repeated is True and is_known(number) and bool(number)
        yield Hit(
            at=loader.options if loader.options is not None and _holds_workers(loader) else loader.call,
            message=(
                f"the workers of {loader.name or 'this loader'} ({context.shown(workers)}) start anew in every epoch"
            ),
            confidence=Confidence.HIGH if is_sure else Confidence.MEDIUM if loader.is_repeated else Confidence.LOW,
            gain=_GAIN,
            fix=_kept_alive(context, loader, workers),
        )


def _is_kept(context: RuleContext, loader: Loader) -> bool:
    """Whether a loader for evaluation outlives one pass: an attribute, or what a function hands out."""
    statement = context.statement(loader.call)
    if any(word in context.function_of(loader.call).name for word in ("test", "predict")):
        return False
    return "." in loader.name or isinstance(statement, ast.Return) or context.function_of(loader.call).name == ""


def _is_made_anew(context: RuleContext, loader: Loader) -> bool:
    """Whether the name gets another loader in a loop, the one over epochs."""
    around = list(context.ancestors(loader.call))
    bindings = context.function_of(loader.call).bindings.get(loader.name, [])
    others = [up for b in bindings for up in context.ancestors(b.node) if isinstance(up, ast.For | ast.While)]
    return any(up not in around for up in others)


def _holds_workers(loader: Loader) -> bool:
    return loader.options is not None and any(
        isinstance(key, ast.Constant) and key.value == "num_workers" for key in loader.options.keys
    )


def _kept_alive(context: RuleContext, loader: Loader, workers: ast.expr) -> Fix | None:
    if any(keyword.arg is None for keyword in loader.call.keywords) or loader.call not in set(loader_calls(context)):
        return None
    if mentions(context.project, context.module, _CHANGED):
        return None
    value = "True" if isinstance(workers, ast.Constant) else f"{context.source(workers)} > 0"
    if not isinstance(workers, ast.Constant | ast.Name | ast.Attribute):
        return None
    return context.set_keyword(loader.call, "persistent_workers", value, "keep the workers between epochs", safe=False)
