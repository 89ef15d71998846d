"""Read tokenizer.json by the tokenizers library, and the special tokens of tokenizer_config.json and its kin.

Source: the tokenizers library; the files of Hugging Face checkpoints.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whet.errors import MissingExtra, TargetError, WhetError, foreign, reason

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"


def library(extra: str, purpose: str) -> Any:
    """Return the tokenizers package, or raise MissingExtra with whet's `extra` and the `purpose` that needs it."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra("tokenizers", extra, purpose) from error
    return tokenizers


@contextmanager
def failing_as(kind: type[WhetError], what: str) -> Iterator[None]:
    """Raise what the tokenizers library raises in the block as an error of whet's.

    A panic of the library's Rust code is a BaseException, which nothing else would catch. `what` says what could not be
    done, as the beginning of the message.
    """
    try:
        with foreign(kind, what):
            yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {reason(error)}") from error


def read_tokenizer(package: Any, path: Path) -> tuple[Any, dict[str, Any]]:
    """Return the tokenizers.Tokenizer of a file, which neither truncates nor pads, and the content of the file.

    `package` is what `library` returned, and `path` a tokenizer.json.

    Raises:
        TargetError: The file cannot be read.
    """
    with failing_as(TargetError, f"{path} cannot be read as a tokenizer"):
        content = path.read_text(encoding="utf-8")
        tokenizer = package.Tokenizer.from_str(content)
        described = json.loads(content)
    tokenizer.no_truncation()  # checkpoints saved after training may truncate or pad every text
    tokenizer.no_padding()
    return tokenizer, described


def special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Return the texts of bos_token, eos_token and so on. Files hold them as text, or as an object with `content`."""
    found = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found
