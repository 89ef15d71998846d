"""Read texts with labels from JSON lines, and turn them into rows of tokens for a classifier."""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whet.errors import TargetError, foreign, type_name
from whet.trainer.model import Batch
from whet.trainer.sections import DataSection
from whet.trainer.tokens.documents import records
from whet.trainer.tokens.order import Order

Label = str | int
_TOGETHER = 1024  # texts that are encoded together
_SORTED = 50  # batches whose rows are sorted by length together


@dataclass(frozen=True)
class Example:
    """Hold a text, or a pair of texts, with its label; `place` says where it stands, for messages."""

    text: str
    second: str | None
    label: Label
    place: str


def read_examples(files: Iterable[Path], section: DataSection) -> list[Example]:
    """Read the examples of files.

    Raises:
        TargetError: A file cannot be read, there are no examples, or a text or a label is missing or of another type.
    """
    found: list[Example] = []
    for path in files:
        for place, record in records(path):
            second = None if section.second_text_key is None else _text(record, section.second_text_key, place)
            found.append(Example(_text(record, section.text_key, place), second, _label(record, section, place), place))
            if type(found[-1].label) is not type(found[0].label):
                raise TargetError(
                    f"{place}: the label is {type_name(found[-1].label)}, and that of {found[0].place} is "
                    f"{type_name(found[0].label)}; write all labels as texts, or all as whole numbers"
                )
    if not found:
        raise TargetError(f"there are no texts with labels in {', '.join(map(str, files))}")
    return found


def _text(record: Any, key: str, place: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        told = f"{key} is {type_name(value)}; it must be a text" if key in record else f"there is no {key!r}"
        raise TargetError(f"{place}: {told}; the keys are: {', '.join(record) or 'none'}")
    return value


def _label(record: Any, section: DataSection, place: str) -> Label:
    value = record.get(section.label_key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        told = f"the label is {type_name(value)}" if section.label_key in record else "there is no label"
        raise TargetError(
            f"{place}: {told} under {section.label_key!r}; data.label_key names the key of a text or a whole number"
        )
    return value


def labels_of(examples: Sequence[Example]) -> list[Label]:
    """Return the labels of examples, sorted.

    Raises:
        TargetError: There is only one.
    """
    found = sorted({example.label for example in examples})
    if len(found) < 2:
        raise TargetError(
            f"all {len(examples)} texts have the label {found[0]!r}; a classifier needs two labels or more"
        )
    return found


def check_known(examples: Sequence[Example], labels: Sequence[Label]) -> None:
    """Raise TargetError where a label of held-out examples is none that the model learns."""
    known = set(labels)
    for example in examples:
        if example.label not in known:
            shown = ", ".join(map(repr, labels[:10])) + (", ..." if len(labels) > 10 else "")
            raise TargetError(
                f"{example.place}: the label {example.label!r} is not in the training data, whose labels are {shown}"
            )


def divided(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Return examples to learn from and held-out ones: of each label the part `share`, chosen the same way each time.

    Raises:
        TargetError: No label has enough examples for both.
    """
    by_label: dict[Label, list[int]] = {}
    for index in Order(len(examples), 0).items(0, len(examples)):
        by_label.setdefault(examples[index].label, []).append(int(index))
    held = {index for indices in by_label.values() for index in indices[: int(share * len(indices))]}
    if not held:
        raise TargetError(
            f"a share of {share:g} of {len(examples)} texts leaves no text of any label to hold out; give more texts, "
            "a larger data.held_out_share, or data.held_out"
        )
    parts: tuple[list[Example], list[Example]] = ([], [])
    for index, example in enumerate(examples):
        parts[index in held].append(example)
    return parts


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Hold the tokens of texts, one after the other, with their classes.

    Attributes:
        ids: The tokens of all texts. [n]
        types: 0 for tokens of a first text and 1 for those of a second; None where there are no pairs. [n]
        starts: Where each text begins among the tokens, and where the last one ends. [rows + 1]
        classes: The class of each text. [rows]
        num_cut: The texts that were longer than a row, and were cut.
        pad_id: The token behind short texts of a batch.
    """

    ids: NDArray[np.int64]
    types: NDArray[np.int64] | None
    starts: NDArray[np.int64]
    classes: NDArray[np.int64]
    num_cut: int
    pad_id: int

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each text."""
        return np.diff(self.starts)

    @property
    def digest(self) -> str:
        found = hashlib.sha256()
        for values in (self.ids, self.types, self.starts, self.classes):
            found.update(b"none" if values is None else values.tobytes())
        return found.hexdigest()[:16]

    def batch(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Return some texts as a batch, padded to the longest of them.

        Returns:
            "ids", "mask" (1 for tokens, 0 for padding) and, of pairs, "types", int64 [B, T]; "targets", int64 [B].
        """
        lengths = self.lengths[indices]
        shape = (len(indices), int(lengths.max()))
        places = np.arange(shape[1])[None]
        mask = places < lengths[:, None]
        taken = (self.starts[:-1][indices][:, None] + places)[mask]
        ids, types = np.full(shape, self.pad_id, np.int64), np.zeros(shape, np.int64)
        ids[mask] = self.ids[taken]
        found = {"ids": ids, "mask": mask.astype(np.int64), "targets": self.classes[indices]}
        if self.types is not None:
            types[mask] = self.types[taken]
            found["types"] = types
        return {name: torch.from_numpy(values) for name, values in found.items()}


def encoded_rows(
    examples: Sequence[Example], tokenizer: Any, length: int, class_of: Callable[[Label], int], pad_id: int
) -> LabelledRows:
    """Return the tokens of examples, with the special tokens that the tokenizer puts around a text or a pair.

    Args:
        tokenizer: A tokenizers.Tokenizer.
        length: The most tokens of a row. Longer texts are cut, of a pair the longer one first.

    Raises:
        TargetError: The tokenizer fails, or a text has no tokens.
    """
    ids, types, starts = array("q"), array("q"), array("q", [0])
    num_cut, has_pairs = 0, examples[0].second is not None
    with foreign(TargetError, "the tokenizer cannot encode the texts"):
        tokenizer.enable_truncation(max_length=length)
        try:
            for example, encoding in _encodings(examples, tokenizer):
                if not encoding.ids:
                    raise TargetError(f"{example.place}: the text has no tokens; leave it out")
                ids.extend(encoding.ids)
                types.extend(encoding.type_ids)
                starts.append(len(ids))
                num_cut += bool(encoding.overflowing)
        finally:
            tokenizer.no_truncation()
    return LabelledRows(
        ids=np.array(ids, np.int64),
        types=np.array(types, np.int64) if has_pairs else None,
        starts=np.array(starts, np.int64),
        classes=np.array([class_of(example.label) for example in examples], np.int64),
        num_cut=num_cut,
        pad_id=pad_id,
    )


def _encodings(examples: Sequence[Example], tokenizer: Any) -> Iterator[tuple[Example, Any]]:
    for begin in range(0, len(examples), _TOGETHER):
        part = examples[begin : begin + _TOGETHER]
        texts = [one.text if one.second is None else (one.text, one.second) for one in part]
        yield from zip(part, tokenizer.encode_batch(texts, add_special_tokens=True), strict=True)


@dataclass(frozen=True, eq=False)
class LabelledOrder:
    """Say which rows a step sees: a function of the step alone.

    Attributes:
        lengths: The tokens of each row.
        by_length: Whether rows of similar length share a batch: those of 50 batches are sorted together, and their
            batches come in an order of their own.
    """

    lengths: NDArray[np.int64]
    batch_size: int
    seed: int
    shuffle: bool
    by_length: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rows", Order(len(self.lengths), self.seed, shuffle=self.shuffle))

    def rows_of(self, step: int) -> NDArray[np.int64]:
        """Return the numbers of the rows of a step, from 0."""
        rows: Order = self._rows  # type: ignore[attr-defined]
        size = self.batch_size
        if not self.by_length:
            return rows.items(step * size, size)
        number = max(1, min(_SORTED, len(self.lengths) // size))  # batches that are sorted together
        group = step // number
        found = rows.items(group * number * size, number * size)
        found = found[np.argsort(self.lengths[found], kind="stable")]
        place = Order(number, self.seed + 1, shuffle=self.shuffle).item(step)
        return found[place * size : (place + 1) * size]
