"""Load a tokenizer, or make one of characters or bytes, and save it so that transformers and `whet serve` load it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.core.tokenizer_files.byte_alphabet import BYTE_OF
from whet.core.tokenizer_files.chat_template import FILE as TEMPLATE
from whet.core.tokenizer_files.chat_template import ChatTemplate
from whet.core.tokenizer_files.reading import CONFIG, FILE, SPECIAL_TOKENS, library, read_tokenizer, special_tokens
from whet.errors import TargetError
from whet.files import read_object, usable_directory, write_whole
from whet.trainer.tokens.chat import DEFAULT_TEMPLATE
from whet.trainer.tokens.direct import CHARACTER

CHARACTERS, BYTES = "characters", "bytes"
END, UNKNOWN = "<|endoftext|>", "<|unknown|>"
# The special tokens that end a text, in checkpoints that do not say which one it is.
_KNOWN_ENDS = (END, "</s>", "<|end_of_text|>", "<|eos|>", "<eos>", "<｜end▁of▁sentence｜>")
_PURPOSE = "turning text into tokens"


@dataclass(frozen=True, eq=False)
class LoadedTokenizer:
    """Hold a tokenizer and what belongs to it. It unpacks as `tokenizer, end_id`.

    Attributes:
        tokenizer: A tokenizers.Tokenizer.
        end_id: The token that ends a text; None where there is none.
        template: What conversations are written by: the tokenizer's own template, or whet's plain one.
        settings: The content of its special_tokens_map.json and tokenizer_config.json.
    """

    tokenizer: Any
    end_id: int | None
    template: ChatTemplate
    settings: dict[str, Any]

    def __iter__(self) -> Iterator[Any]:
        yield self.tokenizer
        yield self.end_id

    @property
    def num_ids(self) -> int:
        """Return the largest token id plus one: what the vocabulary of a model must have at least."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def load_tokenizer(name_or_path: str | Path, texts: Iterable[str] = ()) -> LoadedTokenizer:
    """Load a tokenizer.

    Args:
        name_or_path: "characters": the characters of the texts, one a token. "bytes": the 256 bytes of UTF-8. Else a
            tokenizer.json, or a directory with one, such as a checkpoint. Nothing is downloaded.
        texts: The text that characters come from. It is not read for other tokenizers.

    Raises:
        TargetError: There is no such tokenizer, it is damaged, or there are no texts to find characters in.
        MissingExtra: The package tokenizers is not installed.
    """
    if str(name_or_path) == CHARACTERS:
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        return completed(_of_characters(characters))
    if str(name_or_path) == BYTES:
        return completed(_of_bytes())
    path = Path(name_or_path).expanduser()
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        told = f"{path} has no {FILE}" if path.is_dir() else f"there is no tokenizer {name_or_path}"
        raise TargetError(
            f"{told}: name {CHARACTERS}, {BYTES}, a {FILE}, or a directory with one "
            "(transformers: AutoTokenizer.from_pretrained(NAME).save_pretrained(DIR) writes it)"
        )
    tokenizer, _ = read_tokenizer(library("examples", _PURPOSE), file)
    return completed(tokenizer, file.parent)


def completed(tokenizer: Any, directory: Path | None = None) -> LoadedTokenizer:
    """Return a tokenizer with its end of text and its chat template.

    Args:
        tokenizer: A tokenizers.Tokenizer; a LoadedTokenizer is returned as it is.
        directory: Where its tokenizer_config.json and its kin lie; None for nowhere.

    Raises:
        TargetError: One of these files is damaged.
    """
    if isinstance(tokenizer, LoadedTokenizer):
        return tokenizer

    def read(name: str) -> dict[str, Any]:
        return {} if directory is None else read_object(directory / name, required=False)

    settings = read(SPECIAL_TOKENS) | read(CONFIG)
    names = special_tokens(settings)
    end_id = tokenizer.token_to_id(names["eos_token"]) if "eos_token" in names else None
    if end_id is None:
        end_id = _stated_end(read("generation_config.json") | {"config": read("config.json")})
    if end_id is None:
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
        end_id = next((tokenizer.token_to_id(one) for one in _KNOWN_ENDS if one in special), None)
    if end_id is not None:
        names.setdefault("eos_token", tokenizer.id_to_token(end_id) or "")
    template = ChatTemplate(directory, settings, names)
    if template.is_plain:
        template = ChatTemplate(None, {"chat_template": DEFAULT_TEMPLATE}, names)
    return LoadedTokenizer(tokenizer, end_id, template, settings)


def save_tokenizer(tokenizer: Any, directory: Path | str) -> None:
    """Write tokenizer.json and tokenizer_config.json, which transformers and `whet serve` load.

    The chat template goes with it, whet's plain one too: what was learnt from conversations is served by the same one.

    Args:
        tokenizer: A LoadedTokenizer, or a tokenizers.Tokenizer.
        directory: Where they are written. It is made if it is not there.

    Raises:
        OutputError: It cannot be written.
    """
    loaded = completed(tokenizer)
    place = usable_directory(Path(directory))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | loaded.settings
    if loaded.end_id is not None and "eos_token" not in settings:
        settings["eos_token"] = loaded.tokenizer.id_to_token(loaded.end_id)
    if "unk_token" not in settings and loaded.tokenizer.token_to_id(UNKNOWN) is not None:
        settings["unk_token"] = UNKNOWN
    settings["chat_template"] = loaded.template.text
    write_whole(place / FILE, loaded.tokenizer.to_str(pretty=True))
    write_whole(place / CONFIG, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    (place / TEMPLATE).unlink(missing_ok=True)  # one of before would go before the one just written


def _stated_end(stated: dict[str, Any]) -> int | None:
    """Return the token that a checkpoint's generation_config.json or config.json names as the end."""
    for value in (stated.get("eos_token_id"), stated["config"].get("eos_token_id")):
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int) and not isinstance(first, bool) and first >= 0:
            return first
    return None


def _of_characters(characters: set[str]) -> Any:
    """Return a tokenizer of single characters, in the order of their code points."""
    if not characters:
        raise TargetError("a tokenizer of characters is made from a text, and there is none")
    package = library("examples", _PURPOSE)
    vocabulary = {character: number for number, character in enumerate([*sorted(characters), UNKNOWN])}
    tokenizer = package.Tokenizer(package.models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = package.pre_tokenizers.Split(package.Regex(CHARACTER), "isolated")
    tokenizer.decoder = package.decoders.Fuse()
    tokenizer.add_special_tokens([UNKNOWN, END])
    return tokenizer


def _of_bytes() -> Any:
    """Return a tokenizer whose token ids are the bytes of UTF-8."""
    package = library("examples", _PURPOSE)
    tokenizer = package.Tokenizer(package.models.BPE(dict(BYTE_OF), []))
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer
