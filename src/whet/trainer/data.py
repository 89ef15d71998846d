"""Open the data of a run: its tokenizer, its tokens, and the batches of each step."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from whet.core.tokenizer_files.reading import FILE as TOKENIZER
from whet.errors import OptionError, TargetError, foreign
from whet.parallel.share import WHOLE, Share
from whet.techniques.mechanisms.packing.packing import IGNORED, TokenBatch
from whet.trainer.config import TrainConfig
from whet.trainer.model import Batch
from whet.trainer.sections import DataSection
from whet.trainer.tokens.batches import PackedRows, Rows, TokenBatches, Windows, split
from whet.trainer.tokens.file_digests import check_untouched, file_identity
from whet.trainer.tokens.store import TokenStore, open_raw
from whet.trainer.tokens.tokenise import characters_of, tokenised
from whet.trainer.tokens.tokenizer import CHARACTERS, LoadedTokenizer, load_tokenizer, save_tokenizer
from whet.trainer.tokens.worker_batches import WorkerBatches

_TOKENS = (".bin", ".npy")


@dataclass(frozen=True)
class StepBatches:
    """Give the batches of optimiser steps, from a step on, without an end. Each is a function of its step alone.

    Attributes:
        begin: The steps that are made already.
        num_workers: The processes that read them ahead; 0 for none.
        mapped: The files of tokens that are mapped while they are read, each with its identity.
        share: Which rows of each batch are this process's.
    """

    rows: TokenBatches
    begin: int
    is_packed: bool
    num_workers: int = 0
    mapped: tuple[tuple[Path, dict[str, int]], ...] = ()
    share: Share = WHOLE
    _open: list[WorkerBatches] = field(default_factory=list, repr=False, compare=False)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches.

        Raises:
            TargetError: A batch cannot be read.
        """
        if not self.num_workers:
            yield from map(self.read, itertools.count(self.begin))
            return
        with closing(WorkerBatches(self.read, self.num_workers, self.begin)) as batches:
            self._open.append(batches)
            yield from batches

    def read(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0.

        Raises:
            TargetError: It cannot be read, or a file was written to since it was mapped.
        """
        for path, identity in self.mapped:
            check_untouched(path, identity)
        with foreign(TargetError, f"the batch of step {step + 1} cannot be read"):
            return batch_of(self.rows.batch_at(step, self.share), is_packed=self.is_packed)

    def close(self) -> None:
        """End all processes that read batches."""
        while self._open:
            self._open.pop().close()


def batch_of(tokens: TokenBatch, *, is_packed: bool) -> Batch:
    """Return rows of tokens as the loss takes them; `is_packed` says that they hold several documents."""
    found = {"ids": tokens.ids, "targets": tokens.targets}
    if is_packed:
        found |= {"positions": tokens.positions, "documents": tokens.documents}
    return found


@dataclass(frozen=True)
class RunData:
    """Hold the data of a run.

    Attributes:
        tokenizer: What the text was split with; None for files of tokens without a tokenizer.
        store: The tokens to learn from.
        held: The tokens that are scored.
        mapped: The files of tokens that are mapped, each with what `file_identity` returned then.
    """

    config: TrainConfig
    tokenizer: LoadedTokenizer | None
    store: TokenStore
    held: TokenStore
    learnt: Rows
    scored: Rows
    mapped: tuple[tuple[Path, dict[str, int]], ...] = ()
    _given: list[StepBatches] = field(default_factory=list, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Return what is said of the data."""
        return f"{self.store.num_tokens:,} tokens to learn from, {self.held.num_tokens:,} held out"

    @property
    def num_rows(self) -> int:
        return len(self.learnt)

    @property
    def vocab_size(self) -> int:
        """Return how many tokens a new model needs to know."""
        return self.largest_id + 1 if self.tokenizer is None else self.tokenizer.num_ids

    @property
    def largest_id(self) -> int:
        return max(self.store.largest_id, self.held.largest_id)

    @property
    def digest(self) -> str:
        """Return a digest of the rows and of their order: everything that decides what a step sees."""
        section = self.config.data
        told = f"{self.store.digest} {self.held.digest} {section.sequence_length} {section.pack} {section.shuffle}"
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @cached_property
    def _batches(self) -> TokenBatches:
        config = self.config
        size = config.batch.global_batch_size
        return TokenBatches(self.learnt, size, config.seed, shuffle=config.data.shuffle)

    def batches(self, begin: int, share: Share = WHOLE) -> StepBatches:
        """Return the batches of the steps after `begin` steps, or a process's share of each."""
        section = self.config.data
        found = StepBatches(self._batches, begin, section.pack, section.num_workers, self.mapped, share)
        self._given.append(found)
        return found

    def close(self) -> None:
        """End all processes that read batches."""
        while self._given:
            self._given.pop().close()

    def rows_of(self, step: int) -> list[int]:
        """Return the numbers of the rows that a step sees, counted from 0."""
        size = self.config.batch.global_batch_size
        return [int(item) for item in self._batches.order.items(step * size, size)]

    def one_row(self) -> Batch:
        return batch_of(self.learnt.batch([0]), is_packed=self.config.data.pack)

    def tokens_of(self, batches: Iterable[Batch]) -> int:
        """Return the tokens of batches that have a loss: neither padding nor what is masked."""
        return sum(int((batch["targets"] != IGNORED).sum()) for batch in batches)

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def held_out(self, num_rows: int) -> list[Batch]:
        """Return batches of the first held-out rows."""
        number = min(num_rows, len(self.scored))
        if not number:
            return []
        size = min(self.config.batch.micro_batch_size or self.config.batch.global_batch_size, number)
        batches = TokenBatches(self.scored, size, 0, shuffle=False)
        found = [batch_of(batches.batch_at(i), is_packed=self.config.data.pack) for i in range(-(-number // size))]
        left = number - size * (len(found) - 1)
        return [*found[:-1], {name: rows[:left] for name, rows in found[-1].items()}]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text.

        Raises:
            OptionError: There is no tokenizer, or the text has no tokens.
        """
        if self.tokenizer is None:
            raise OptionError("evaluation.prompt needs data.tokenizer, which splits it into tokens")
        ids: list[int] = self.tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
        if not ids:
            raise OptionError(f"evaluation.prompt {text!r} has no tokens")
        return ids

    def decode(self, ids: list[int]) -> str:
        assert self.tokenizer is not None
        text: str = self.tokenizer.tokenizer.decode(ids)
        return text

    @property
    def special_tokens(self) -> dict[str, int]:
        """Return the ids of special tokens, by their names in a config.json."""
        if self.tokenizer is None or self.tokenizer.end_id is None:
            return {} if self.config.data.end_id is None else {"eos_token_id": self.config.data.end_id}
        return {"eos_token_id": self.tokenizer.end_id}

    def write_tokenizer(self, directory: Path) -> None:
        if self.tokenizer is not None:
            save_tokenizer(self.tokenizer, directory)


def open_data(config: TrainConfig, model: Path | None, say: Callable[[str], None]) -> RunData:
    """Open the data of a configuration; text is split into tokens where that was not done before.

    Args:
        model: The directory of the model that is gone on from, whose tokenizer is the default.

    Raises:
        WhetError: The data cannot be read, or is too little.
    """
    section = config.data
    files = (*section.train, *(section.held_out or ()))
    mapped = tuple((path, file_identity(path)) for path in files if path.suffix in _TOKENS)
    tokenizer = _tokenizer(section, model)
    store = _opened(section, section.train, tokenizer, say)
    if section.held_out is not None:
        learnt, held = store, _opened(section, section.held_out, tokenizer, say)
    else:
        learnt, held = split(store, section.held_out_share)
    data = RunData(config, tokenizer, learnt, held, _rows(section, learnt), _rows(section, held), mapped)
    if config.evaluation.prompt is not None:
        data.encode(config.evaluation.prompt)
    return data


def _tokenizer(section: DataSection, model: Path | None) -> LoadedTokenizer | None:
    if section.tokenizer == CHARACTERS:
        if any(path.suffix in _TOKENS for path in section.train):
            raise OptionError("data.tokenizer is characters, and files of tokens have none; name their tokenizer")
        characters = characters_of(section.train, **_of_text(section))
        if not characters:
            raise TargetError(f"{', '.join(map(str, section.train))}: there is no text in data.train; give some")
        return load_tokenizer(CHARACTERS, characters)
    if section.tokenizer is not None:
        return load_tokenizer(section.tokenizer)
    is_text = any(path.suffix not in _TOKENS for path in section.train)
    if model is not None and (is_text or (model / TOKENIZER).is_file()):
        return load_tokenizer(model)
    if is_text:
        raise OptionError(
            "data.tokenizer is missing: name characters, bytes, a tokenizer.json or a directory with one; it splits "
            "the text into tokens"
        )
    return None


def _of_text(section: DataSection) -> dict[str, Any]:
    found: dict[str, Any] = {"text_key": section.text_key, "separator": section.separator}
    return found if section.cache is None else {**found, "cache": section.cache}


def _opened(
    section: DataSection, files: tuple[Path, ...], tokenizer: LoadedTokenizer | None, say: Callable[[str], None]
) -> TokenStore:
    """Return the tokens of files, all of text or one of tokens."""
    raw = [path for path in files if path.suffix in _TOKENS]
    if not raw:
        assert tokenizer is not None
        append = section.pack and tokenizer.end_id is not None
        return tokenised(files, tokenizer, append_end=append or len(files) > 1, **_of_text(section))
    if len(files) > 1:
        raise TargetError(f"{raw[0]} holds tokens, and is to be the only file; join the others to it")
    dtype = section.dtype if raw[0].suffix == ".bin" else None
    return open_raw(raw[0], dtype=dtype, end_id=section.end_id, cache=section.cache)


def _rows(section: DataSection, store: TokenStore) -> Rows:
    kind = PackedRows if section.pack else Windows
    found: Rows = kind(store, section.sequence_length)
    return found
