"""MOV102 no-pinned-memory: batches for a GPU come from a DataLoader that does not pin its memory.

Finds       DataLoader(...) without pin_memory=True in code that moves tensors to a GPU.
Why slow    From pageable memory the driver copies through a buffer of its own, at a third to a half of the speed, and
            the CPU waits for it, even with non_blocking=True.
Example     loader = DataLoader(data, batch_size=64)
Instead     loader = DataLoader(data, batch_size=64, pin_memory=True)
Gain        half of the share of the step spent copying, and all of it together with MOV101; nothing on a CPU.
Fix         safe where a loop surely moves the batches' tensors from the CPU to CUDA; else unsafe: tensors of a GPU
            cannot be pinned. None where the dataset may hold such.
Source      PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.copies import is_certain
from whet_audit.finding import Confidence, Fix, Gain, Hit, Priority
from whet_audit.loaders import Pinned, loader_calls, loader_of, loop_around, pinned
from whet_audit.rule_context import RuleContext
from whet_audit.transfers import transfers

CODE = "MOV102"
NAME = "no-pinned-memory"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.15, "half of the time spent copying batches to a GPU; nothing on a CPU")
_GPU = re.compile(r"\bcuda\b|\.cuda\(|\bgpus?\b|accelerat|\.to\((self\.|args\.)?_?device\)|[Ll]ightning|model\.device")
_MOVES = re.compile(r"cuda|device|\.to\(")
_CPU_ONLY = re.compile(r"""device\s*=\s*(torch\.device\()?["']cpu["']\)?\s*$""", re.MULTILINE)


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of DataLoader that do not pin, in modules that use a GPU."""
    calls = [call for call in loader_calls(context) if pinned(context, call) is Pinned.NO]
    if not calls or not _uses_gpu(context):
        return
    for call in calls:
        given = context.keyword(call, "pin_memory", 7)
        is_option = given is not None and not isinstance(given, ast.Constant)
        yield Hit(
            at=call,
            message=f"{context.shown(call.func)}(...) does not pin its memory, so copies to the GPU are slow and block",
            confidence=Confidence.LOW if given is not None else Confidence.MEDIUM,
            gain=_GAIN,
            fix=None if is_option or not _is_of_cpu(context, call) else _pinned(context, call),
        )


def _pinned(context: RuleContext, call: ast.Call) -> Fix | None:
    value = "torch.cuda.is_available()" if context.module.imports.get("torch") == "torch" else "True"
    return context.set_keyword(
        call, "pin_memory", value, "pin the loader's memory", safe=_is_moved_later(context, call)
    )


def _uses_gpu(context: RuleContext) -> bool:
    text, parts = context.module.text, context.module.place.split("/")
    if "tests" in parts[:-1] or parts[-1].startswith("test_"):
        return False
    return _GPU.search(text) is not None and _CPU_ONLY.search(text) is None


def _is_of_cpu(context: RuleContext, call: ast.Call) -> bool:
    """Whether the batches are likely made on the CPU: their loop moves them, or the dataset moves nothing."""
    for copy, _ in transfers(context):
        loop = loop_around(context, copy)
        if loop is not None and loader_of(context, loop.iter) is call:
            return True
    dataset = context.keyword(call, "dataset", 0)
    if dataset is None:
        return False
    value = context.value(dataset)
    if value.cls is not None:
        return _MOVES.search(value.cls.module.source_of(value.cls.node)) is None
    return (value.dotted or "").startswith("torchvision.datasets.")


def _is_moved_later(context: RuleContext, call: ast.Call) -> bool:
    """Whether a loop over this very loader surely moves its tensors from the CPU to CUDA."""
    for copy, moved in transfers(context):
        if is_certain(context, copy, moved):
            loop = loop_around(context, copy)
            if loop is not None and loader_of(context, loop.iter) is call:
                return True
    return False
