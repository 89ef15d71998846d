"""Train a classifier of texts: task = "classification" of `whet train`."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.core.workload.micro_batches import counted
from whet.errors import OptionError
from whet.parallel.share import WHOLE, Share
from whet.trainer.config import TrainConfig
from whet.trainer.labelled import (
    Example,
    LabelledOrder,
    LabelledRows,
    check_known,
    divided,
    encoded_rows,
    labels_of,
    read_examples,
)
from whet.trainer.model import Batch, TrainedModel
from whet.trainer.sections import DataSection
from whet.trainer.tokens.order import Order
from whet.trainer.tokens.tokenizer import CHARACTERS, LoadedTokenizer, load_tokenizer, save_tokenizer
from whet.workloads.huggingface_classifier import OpenedClassifier, load_classifier
from whet.workloads.text_encoder import position_limit


@dataclass(frozen=True)
class ClassifierModel(TrainedModel):
    """Hold a classifier that is trained. `logits` maps ids, types and a mask [B, T] to logits [B, C]."""

    labels: tuple[str, ...] = ()

    @property
    def num_outcomes(self) -> int:
        return len(self.labels)

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a batch, in nats a text."""
        logits_BC = self.logits(module, batch["ids"], batch.get("types"), batch["mask"]).float()
        # It is counted here, since torch's loss cannot be told from one that compares the texts of a batch where there
        # are as many texts as classes.
        return counted(lambda: F.cross_entropy(logits_BC, batch["targets"]), len(logits_BC))

    def num_targets(self, batch: Batch) -> int:
        return len(batch["targets"])

    def tally(self, module: nn.Module, batch: Batch) -> list[float]:
        """Return the cross-entropy in nats, then of each class the hits, the texts of it, and the answers of it."""
        logits_BC = self.logits(module, batch["ids"], batch.get("types"), batch["mask"]).float()
        right_B, found_B = batch["targets"], logits_BC.argmax(-1)
        loss = float(F.cross_entropy(logits_BC, right_B, reduction="sum"))
        counts = [
            torch.bincount(of, minlength=len(self.labels)) for of in (right_B[right_B == found_B], right_B, found_B)
        ]
        return [loss, *torch.cat(counts).double().tolist()]

    def scored(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the mean cross-entropy in nats a text, the accuracy, and the macro F1."""
        hits, right, found = np.array(sums[1:]).reshape(3, -1)
        return {
            "held_out_loss": float(sums[0] / right.sum()),
            "accuracy": float(hits.sum() / right.sum()),
            "macro_f1": macro_f1(hits, right, found),
        }


def macro_f1(hits: Any, right: Any, found: Any) -> float:
    """Return the mean of F1 = 2 TP / (2 TP + FP + FN) over the classes that occur, from counts of each class, [C]."""
    occurs = right + found > 0
    return float(np.mean(2 * hits[occurs] / (right + found)[occurs]))


@dataclass(frozen=True)
class ClassificationData:
    """Hold the data of a classification. RunData describes the methods that have no docstring here."""

    config: TrainConfig
    tokenizer: LoadedTokenizer
    learnt: LabelledRows
    scored: LabelledRows
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{len(self.learnt):,} texts to learn from, {len(self.scored):,} held out"

    @property
    def num_rows(self) -> int:
        return len(self.learnt)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.num_ids

    @property
    def largest_id(self) -> int:
        return int(max(self.learnt.ids.max(), self.scored.ids.max()))

    @property
    def digest(self) -> str:
        section = self.config.data
        told = f"{self.learnt.digest} {self.scored.digest} {section.group_by_length} {section.shuffle}"
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @cached_property
    def order(self) -> LabelledOrder:
        config, section = self.config, self.config.data
        size = config.batch.global_batch_size
        return LabelledOrder(self.learnt.lengths, size, config.seed, section.shuffle, section.group_by_length)

    def batches(self, begin: int, share: Share = WHOLE) -> "LabelledBatches":
        return LabelledBatches(self, begin, share)

    def rows_of(self, step: int) -> list[int]:
        return [int(row) for row in self.order.rows_of(step)]

    def one_row(self) -> Batch:
        return self.learnt.batch([0])

    def close(self) -> None:
        """Do nothing: no processes read the batches, which are in memory."""

    def tokens_of(self, batches: Iterable[Batch]) -> int:
        """Return the tokens of batches, without padding: each text has one loss, which comes from all its tokens."""
        return sum(int(batch["mask"].sum()) for batch in batches)

    def held_out(self, num_rows: int) -> list[Batch]:
        """Return batches of held-out rows, at most so many, chosen the same way each time."""
        number = min(num_rows, len(self.scored))
        size = min(self.config.batch.micro_batch_size or self.config.batch.global_batch_size, number)
        rows = Order(len(self.scored), 0).items(0, number)
        return [self.scored.batch(rows[i : i + size]) for i in range(0, number, size)]

    def encode(self, text: str) -> list[int]:
        """Refuse a prompt.

        Raises:
            OptionError: In any case: a classifier goes on with no text.
        """
        raise OptionError(f"evaluation.prompt {text!r} is for language models; leave it out")

    def decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.tokenizer.decode(ids)
        return text

    @property
    def special_tokens(self) -> dict[str, int]:
        """Return the ids of special tokens that go into a config.json: none, since the model's own stay."""
        return {}

    def write_tokenizer(self, directory: Path) -> None:
        save_tokenizer(self.tokenizer, directory)


@dataclass(frozen=True)
class LabelledBatches:
    """Give the batches of optimiser steps after `begin` steps, without an end. Each is a function of its step alone."""

    data: ClassificationData
    begin: int
    share: Share = WHOLE

    def __iter__(self) -> Iterator[Batch]:
        step = self.begin
        while True:
            rows = self.data.order.rows_of(step)
            yield self.data.learnt.batch(rows[self.share.of(len(rows))])
            step += 1


def open_classification(config: TrainConfig) -> tuple[ClassifierModel, ClassificationData]:
    """Open the data of a classification, and its model with a head for the labels of the data.

    Raises:
        WhetError: The data or the model cannot be read, or do not fit each other.
    """
    section, directory = config.data, config.model.directory
    assert directory is not None
    examples = read_examples(section.train, section)
    labels = labels_of(examples)
    if section.held_out is None:
        learnt, held = divided(examples, section.held_out_share)
    else:
        learnt, held = examples, read_examples(section.held_out, section)
        check_known(held, labels)
    tokenizer = _tokenizer(section, directory, learnt)
    torch.manual_seed(config.seed)
    opened = load_classifier(directory, labels, tokenizer.end_id)
    model = _model(opened)
    class_of = dict(zip(labels, opened.classes, strict=True))
    if model.max_tokens is not None and section.sequence_length > model.max_tokens:
        raise OptionError(
            f"data.sequence_length is {section.sequence_length}, and the model takes {model.max_tokens} tokens; give "
            "fewer"
        )
    pad_id = opened.model.config.pad_token_id
    if pad_id is None:
        raise OptionError(
            f"the config.json in {directory} names no pad_token_id, and the tokenizer no end of text, so that short "
            "texts cannot be padded; write pad_token_id into it"
        )
    rows = [
        encoded_rows(part, tokenizer.tokenizer, section.sequence_length, class_of.__getitem__, pad_id)
        for part in (learnt, held)
    ]
    cut = sum(part.num_cut for part in rows)
    told = f"{cut:,} of {sum(map(len, rows)):,} texts have more than {section.sequence_length} tokens, and were cut"
    data = ClassificationData(config, tokenizer, rows[0], rows[1], (told,) if cut else ())
    if config.evaluation.prompt is not None:
        data.encode(config.evaluation.prompt)
    return model, data


def _tokenizer(section: DataSection, directory: Path, examples: list[Example]) -> LoadedTokenizer:
    if section.tokenizer == CHARACTERS:
        return load_tokenizer(CHARACTERS, (text for one in examples for text in (one.text, one.second or "")))
    return load_tokenizer(section.tokenizer or directory)


def _model(opened: OpenedClassifier) -> ClassifierModel:
    model = opened.model
    config = model.config
    text = config.get_text_config()
    takes_types = getattr(text, "type_vocab_size", 0) > 1

    def logits(module: nn.Module, ids: Tensor, types: Tensor | None, mask: Tensor | None) -> Tensor:
        given = {} if types is None or not takes_types else {"token_type_ids": types}
        found: Tensor = module(input_ids=ids, attention_mask=mask, **given).logits
        return found

    def write(out: Path, weights: Mapping[str, Tensor], tokens: Mapping[str, int]) -> None:
        model.save_pretrained(out, state_dict=dict(weights))

    labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    count = sum(p.numel() for p in model.parameters())
    kept = "a new head" if opened.is_new else "the head that is there"
    shown = ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")
    limits = {**text.to_dict(), "max_position_embeddings": getattr(text, "max_position_embeddings", None)}
    return ClassifierModel(
        module=model,
        name=f"{text.model_type}, {count / 1e6:.3g} million parameters, {kept} for {len(labels)} labels ({shown})",
        vocab_size=text.vocab_size,
        max_tokens=position_limit(limits),
        logits=logits,
        write=write,
        labels=labels,
    )
