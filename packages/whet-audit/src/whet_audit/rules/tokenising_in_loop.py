"""DAT104 tokenising-in-loop: text that is turned into tokens again in every epoch.

Finds       A tokenizer called in a training loop or step, in a collate function, or in a dataset's __getitem__.
Why slow    It is Python and CPU work between the steps, and its result is the same in every epoch.
Example     for texts in loader: batch = tokenizer(texts, return_tensors="pt").to(device)
Instead     Tokenise once (`dataset.map(tokenise, batched=True)`), keep the ids, and only pad in the loop.
Gain        time to tokenise / step time; less where workers do it.
Fix         none: where the texts come from is for you to say.
Source      Hugging Face course, chapter 3, "Processing the data".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Gain, Hit, HotPath, Priority
from whet_audit.hot_paths import TRAINS, HeatKind
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext

CODE = "DAT104"
NAME = "tokenising-in-loop"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.02, 0.3, "time to tokenise a batch / time of a step, where it is not hidden by workers")
_CALLABLE = re.compile(r"\w*(tokeni[sz]er?|processor)\w*", re.IGNORECASE)
_METHODS = frozenset(
    "encode encode_plus batch_encode_plus tokenize encode_batch encode_as_ids apply_chat_template".split()
)
_MADE_NOW = re.compile(r"generat|respon|complet|output|pred|decod|sampled|augment|rollout|answer_ids|feedback")
_NOT_TEXT = frozenset(("images", "audio", "audios", "videos", "raw_speech"))


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of tokenizers in what runs in every training step or for every sample."""
    for call in context.nodes(ast.Call):
        if not _tokenises(context, call):
            continue
        hot = context.hot(call)
        if hot is None or hot.guard or HeatKind(hot.kind) not in TRAINS | {HeatKind.DATA}:
            continue
        if hot.kind == HeatKind.DATA and not _is_for_a_loader(context):
            continue
        if hot.kind == HeatKind.TRAINING_STEP and not hot.loop_line and _is_given_new_text(context, call):
            continue
        if _MADE_NOW.search(" ".join(context.source(argument) for argument in call.args).lower()):
            continue
        yield _hit(context, call, hot)


def _tokenises(context: RuleContext, call: ast.Call) -> bool:
    name = name_of(call)
    if any(keyword.arg in _NOT_TEXT for keyword in call.keywords) or (not call.args and not call.keywords):
        return False
    if name in _METHODS and isinstance(call.func, ast.Attribute):
        return context.kind(call.func.value) is Kind.TOKENIZER
    return _CALLABLE.fullmatch(name) is not None and context.kind(call.func) is Kind.TOKENIZER


def _is_for_a_loader(context: RuleContext) -> bool:
    """Whether the file speaks of loaders, so that a function named collate is what it seems."""
    return any(word in context.module.text for word in ("DataLoader", "collate_fn", "data_collator", "Dataset"))


def _is_given_new_text(context: RuleContext, call: ast.Call) -> bool:
    """Whether the text is made in the step itself, by decoding or by a model that generates."""
    calls = (name_of(other) for other in context.function_of(call).calls if other.lineno <= call.lineno)
    return any(name in ("generate", "batch_decode", "decode") for name in calls)


def _hit(context: RuleContext, call: ast.Call, hot: HotPath) -> Hit:
    is_data = hot.kind == HeatKind.DATA
    where = "for every sample or batch of every epoch" if is_data else "in every step"
    return Hit(
        at=call,
        hot=hot,
        message=f"{context.shown(call)} tokenises {where}",
        confidence=Confidence.MEDIUM,
        priority=Priority.LOW if is_data else None,
        gain=_GAIN,
    )
