"""Turn files of text into a store of tokens, once: the cache knows stores by the content that they were made from."""

import contextlib
import fcntl
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whet.core.tokenizer_files.chat_template import ChatTemplate
from whet.errors import OutputError, TargetError, foreign
from whet.files import usable_directory, write_whole
from whet.trainer.tokens.chat import DEFAULT_TEMPLATE
from whet.trainer.tokens.documents import Sources
from whet.trainer.tokens.encoding import Encoder
from whet.trainer.tokens.file_digests import file_digest, file_identity, tokens_cache
from whet.trainer.tokens.store import StoreWriter, TokenStore
from whet.trainer.tokens.tokenizer import LoadedTokenizer, completed

_LOG = logging.getLogger("whet")
_VERSION = 1  # of how text becomes tokens: another one makes them anew

Files = Sources | Path | str | Sequence[Path | str]


def tokenised(
    files: Files,
    tokenizer: Any,
    *,
    cache: Path | str | None = None,
    text_key: str = "text",
    separator: str | None = None,
    append_end: bool = True,
    vocab_size: int | None = None,
) -> TokenStore:
    """Return the tokens of files.

    They are made once for each content of the files, tokenizer and options, and kept in the cache. A second process
    that wants the same meanwhile waits for the first.

    Args:
        files: A file or several, whose documents come in this order. See Sources, also for text_key and separator.
        tokenizer: What load_tokenizer returned, or a tokenizers.Tokenizer.
        cache: The directory of cached tokens; None is that of whet.
        append_end: Put the tokenizer's end of text behind each document. What a chat template wrote stays as it is.
        vocab_size: Token ids that the model knows; None for those of the tokenizer.

    Returns:
        The store. It says which tokens are to be learnt where there are conversations, or prompts with completions.

    Raises:
        TargetError: A file is missing, cannot be read, does not hold what it should, or changes meanwhile; there is no
            text; the tokenizer fails, has no end of text, or ids beyond the vocabulary.
        OutputError: The cache cannot be written, or the disk is full. Nothing of the tokens is left behind.
    """
    sources, loaded = Sources.of(files, text_key=text_key, separator=separator), completed(tokenizer)
    if append_end and loaded.end_id is None:
        raise TargetError(
            "the tokenizer names no token that ends a text: put eos_token into its tokenizer_config.json, or append "
            "none (append_end=False)"
        )
    place = usable_directory(tokens_cache(cache))
    before = [file_identity(path) for path in sources.files]
    options: dict[str, Any] = {"append_end": append_end, "end_id": loaded.end_id, "template": loaded.template.text}
    with foreign(TargetError, "the tokenizer cannot be written as a tokenizer.json, by which its tokens are known"):
        options |= {"special": loaded.template.special_tokens, "tokenizer": loaded.tokenizer.to_str()}
    directory = place / _key(sources, place, "tokens", options)
    with _alone(place, directory.name):
        found = _kept(directory)
        if found is None:
            _write(directory, sources, loaded, loaded.end_id if append_end else None, vocab_size)
            if [file_identity(path) for path in sources.files] != before:
                shutil.rmtree(directory, ignore_errors=True)
                raise TargetError("a file of the text changed while it was read; try again when nothing writes to it")
            found = TokenStore.open(directory)
    if vocab_size is not None:
        found.check_fits(vocab_size)
    return found


def characters_of(
    files: Files, *, cache: Path | str | None = None, text_key: str = "text", separator: str | None = None
) -> str:
    """Return the different characters of files, in the order of their code points. They are kept in the cache.

    `load_tokenizer("characters", characters_of(files))` makes a tokenizer of them. Options are those of `tokenised`.

    Raises:
        TargetError: A file is missing, cannot be read, or does not hold what it should.
        OutputError: The cache cannot be written.
    """
    sources = Sources.of(files, text_key=text_key, separator=separator)
    place = usable_directory(tokens_cache(cache))
    note = place / f"{_key(sources, place, 'characters', {})}.json"
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if isinstance(known, str):
            return known
    characters: set[str] = set()
    for part in sources.parts(ChatTemplate(None, {"chat_template": DEFAULT_TEMPLATE}, {})):
        characters.update(part.text)
    found = "".join(sorted(characters))
    write_whole(note, json.dumps(found))
    return found


def _key(sources: Sources, cache: Path, kind: str, options: dict[str, Any]) -> str:
    """Return the name of what is made from files in a certain way."""
    made_from = {
        "version": _VERSION,
        "library": _library_version(),
        "files": [(file_digest(path, cache), "".join(path.suffixes[-2:])) for path in sources.files],
        "text_key": sources.text_key,
        "separator": sources.separator,
        **options,
    }
    digest = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode())
    return f"{kind}-{digest.hexdigest()[:32]}"


def _library_version() -> str:
    try:
        import tokenizers
    except ImportError:  # characters can be counted without it
        return ""
    return str(tokenizers.__version__)


def _kept(directory: Path) -> TokenStore | None:
    """Return the store of a cache; None where there is none, or a damaged one, which is removed."""
    if not directory.exists():
        return None
    try:
        return TokenStore.open(directory)
    except TargetError as error:
        _LOG.warning("%s; the tokens are made anew", error)
        shutil.rmtree(directory, ignore_errors=True)
        return None


def _write(
    directory: Path, sources: Sources, loaded: LoadedTokenizer, end_id: int | None, vocab_size: int | None
) -> None:
    for partial in directory.parent.glob(f".{directory.name}.*"):  # of a process that was ended
        shutil.rmtree(partial, ignore_errors=True)
    num_ids = loaded.num_ids if vocab_size is None else min(loaded.num_ids, vocab_size)
    encoder = Encoder(loaded.tokenizer, end_id)
    with StoreWriter(directory, np.min_scalar_type(max(0, num_ids - 1)), vocab_size=num_ids) as writer:
        for block in encoder.blocks(sources.parts(loaded.template)):
            writer.extend(block.ids, block.ends, block.trained)
        if not writer.num_tokens:
            raise TargetError(f"there is no text in {', '.join(map(str, sources.files))}")
        if not writer.num_trained:
            raise TargetError(
                "nothing in the files is to be learnt: no conversation has an answer of the assistant, and no prompt a "
                "completion"
            )


@contextlib.contextmanager
def _alone(place: Path, name: str) -> Iterator[None]:
    """Let one process at a time make a store. A lock goes with its process, however that ends.

    Raises:
        OutputError: The lock cannot be made.
    """
    try:
        lock = (usable_directory(place / "locks") / name).open("wb")
    except OSError as error:
        raise OutputError(f"cannot write into {place}: {error.strerror or error}; name another cache") from error
    with lock:
        with contextlib.suppress(OSError):  # a file system without locks: two processes do the work twice, and no harm
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
