"""Convert text to token ids and back with a checkpoint's tokenizer.json, and apply its chat template.

Source: the tokenizers library; the files that Hugging Face checkpoints bring (tokenizer.json, tokenizer_config.json,
config.json, generation_config.json, chat_template.jinja).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.core.tokenizer_files.byte_alphabet import BYTE_OF
from whet.core.tokenizer_files.chat_template import ChatTemplate
from whet.core.tokenizer_files.reading import (
    CONFIG,
    FILE,
    SPECIAL_TOKENS,
    failing_as,
    library,
    read_tokenizer,
    special_tokens,
)
from whet.errors import RequestError, TargetError
from whet.files import read_object
from whet.server.compression import bytes_per_token, parts
from whet.server.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from whet.server.rendering import rendered

__all__ = ["Detokenizer", "Tokenizer"]

# Many checkpoints pad their logits to a round number. A tokenizer that covers less than half belongs to another model.
_LEAST_COVERED = 0.5
_SETTING_TYPES = {"TemplateProcessing", "BertProcessing", "RobertaProcessing"}
_FAILS = "the model's tokenizer fails on this text"


class Tokenizer:
    """Tokenise and detokenise with the tokenizer of a checkpoint directory.

    Attributes:
        vocab_size: The number of token ids, added tokens included.
        max_id: The largest token id; -1 if there is none.
        bos_id: The token that begins a text, or None.
        eos_ids: Tokens that end an answer.

    Raises:
        TargetError: tokenizer.json is missing or damaged, or does not fit the vocabulary in config.json; or the chat
            template cannot be read.
        MissingExtra: The package tokenizers is not installed.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = directory = Path(directory).resolve()
        self._tokenizer, described = _load(directory / FILE)
        settings = read_object(directory / CONFIG, required=False)
        config = read_object(directory / "config.json", required=False)
        generation = read_object(directory / "generation_config.json", required=False)
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.max_id: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self._special_ids = {id for id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        special = read_object(directory / SPECIAL_TOKENS, required=False)
        names = special_tokens(special) | special_tokens(settings)
        self.bos_id: int | None = self._id_of(names.get("bos_token"), config.get("bos_token_id"))
        self.eos_ids: frozenset[int] = self._eos_ids(generation, config, names.get("eos_token"))
        self.chat_template = ChatTemplate(directory, settings, names)
        # Each token stands for the same bytes in every context.
        self._is_byte_level = _types(described.get("decoder"), "decoders") == ["ByteLevel"]
        # The post-processor says which type id each token of a pair has. Otherwise, it is 0 or 1.
        self._sets_types = not _SETTING_TYPES.isdisjoint(_types(described.get("post_processor"), "processors"))
        self._bytes_per_token = bytes_per_token(described)
        self._bytes: dict[int, bytes] = {}  # a cache, filled on demand
        if isinstance(config.get("vocab_size"), int):
            self.check_fits(config["vocab_size"])

    @property
    def special_ids(self) -> frozenset[int]:
        """Return the tokens that stand for no text."""
        return frozenset(self._special_ids)

    def special_id(self, text: str) -> int | None:
        """Return the special token that is written so, or None where there is none."""
        token_id: int | None = self._tokenizer.token_to_id(text)
        return token_id if token_id in self._special_ids else None

    def check_fits(self, vocab_size: int) -> None:
        """Raise TargetError unless a model with `vocab_size` logits can belong to this tokenizer."""
        if self.max_id >= vocab_size:
            raise TargetError(
                f"the tokenizer has token ids up to {self.max_id}, the model a vocabulary of {vocab_size}: "
                f"{FILE} belongs to another model; copy the one that came with these weights"
            )
        if self.vocab_size < vocab_size * _LEAST_COVERED:
            raise TargetError(
                f"the tokenizer knows {self.vocab_size} tokens, the model {vocab_size}: "
                f"{FILE} belongs to another model; copy the one that came with these weights"
            )

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the token ids of a text.

        With `add_special`, add the special tokens that the checkpoint puts around a text, such as a leading <s>.

        Raises:
            RequestError: The text is not valid Unicode: it has half a surrogate pair.
        """
        _check_unicode([text])
        with failing_as(RequestError, _FAILS):
            # Unlike encode, encode_batch_fast lets other threads run in the meantime.
            return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)[0].ids)

    def parts(self, texts: Sequence[str]) -> list[Any]:
        """Return texts as the tokenizers library's encodings, without special tokens. `joined` adds these.

        Raises:
            RequestError: A text is not valid Unicode.
        """
        _check_unicode(texts)
        with failing_as(RequestError, _FAILS):
            return list(self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False))

    def joined(self, first: Any, second: Any = None, *, most: int | None = None) -> tuple[list[int], list[int]]:
        """Return token ids and type ids of a text or of a pair, with special tokens around it.

        `first` and `second` are from `parts`; without `second`, it is a single text. The last part is cut in place so
        that there are at most `most` tokens in all, the special ones included; with None, it is kept.
        """
        if most is not None:
            others = self.num_special(is_pair=second is not None) + (0 if second is None else len(first))
            (first if second is None else second).truncate(max(0, most - others))
        whole = self._tokenizer.post_process(first, second)
        if second is None or self._sets_types:
            return list(whole.ids), list(whole.type_ids)
        return list(whole.ids), [0] * len(first) + [1] * len(second)

    def num_special(self, *, is_pair: bool = False) -> int:
        """Return how many special tokens are put around a text, or around a pair."""
        return int(self._tokenizer.num_special_tokens_to_add(is_pair))

    def most_bytes(self, num_tokens: int) -> int | None:
        """Return the most bytes of UTF-8 that a text of `num_tokens` tokens can have; None if no bound is known."""
        return None if self._bytes_per_token is None else num_tokens * self._bytes_per_token

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of tokens. Unknown ids add nothing; special tokens add their text unless they are skipped."""
        with failing_as(RequestError, "the model's tokenizer fails on these tokens"):
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special))

    def detokenizer(self) -> Detokenizer:
        """Return a detokenizer for a new sequence. Its pieces, joined, equal `decode` of all the tokens."""
        if self._is_byte_level:
            return ByteDetokenizer(self._spoken_bytes)
        return WindowDetokenizer(self.decode, self._is_silent, self._is_byte)

    def byte_detokenizer(self) -> Detokenizer:
        """Return one for a new sequence whose text has exactly the bytes of its tokens, special ones left out."""
        return ByteDetokenizer(self._spoken_bytes)

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> str:
        """Return the prompt of a conversation, special tokens included. Encode it with add_special=False.

        Args:
            messages: The messages, each a dict with "role" and "content" and further keys that the template knows.
            add_generation_prompt: End the prompt with the beginning of the assistant's answer.
            variables: Further variables that the template may read.
            tools: The tools that the model may call, as OpenAI's API has them. None for none.

        Raises:
            RequestError: The template refuses the messages. The error holds the template's own message.
        """
        given = {
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            "variables": dict(variables or {}),
            "tools": None if tools is None else list(tools),
        }
        if self.chat_template.is_plain:
            return self.chat_template.render(**given)  # type: ignore[arg-type]
        return rendered(self.chat_template, given)

    def token_text(self, token_id: int) -> str:
        """Return the text of a single token. A part of a character becomes U+FFFD, an unknown id an empty text."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes of a single token. They may be a part of a character."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._find_bytes(token_id)
        return found

    def _find_bytes(self, token_id: int) -> bytes:
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            known = [BYTE_OF[character] for character in token if character in BYTE_OF]
            return bytes(known) if len(known) == len(token) else token.encode()
        if self._is_byte(token_id):
            return bytes([int(token[3:5], 16)])
        if token.startswith("\u2581"):  # decoders would drop the leading space
            return token.replace("\u2581", " ").encode()
        return self.decode([token_id], skip_special=False).encode()

    def _spoken_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._special_ids else self.token_bytes(token_id)

    def _is_silent(self, token_id: int) -> bool:
        return token_id in self._special_ids or self._tokenizer.id_to_token(token_id) is None

    def _is_byte(self, token_id: int) -> bool:
        token = self._tokenizer.id_to_token(token_id)
        return token is not None and len(token) == 6 and token.startswith("<0x") and token.endswith(">")

    def _id_of(self, token: str | None, otherwise: object) -> int | None:
        found = self._tokenizer.token_to_id(token) if token is not None else None
        if found is None and isinstance(otherwise, int):
            found = otherwise
        return found

    def _eos_ids(self, generation: dict[str, Any], config: dict[str, Any], token: str | None) -> frozenset[int]:
        """Return the tokens at which transformers' generate() ends, and the end token of the tokenizer."""
        stated = generation.get("eos_token_id", config.get("eos_token_id"))
        ids = set(stated if isinstance(stated, list) else [stated])
        ids.add(self._id_of(token, None))
        return frozenset(id for id in ids if isinstance(id, int) and id >= 0)


def _check_unicode(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the text is not valid Unicode at character {error.start}") from error


def _load(path: Path) -> tuple[Any, dict[str, Any]]:
    """Return the tokenizers library's tokenizer, and the content of its file."""
    package = library("serve", "reading text")
    if not path.is_file():
        if not (path.parent / "config.json").is_file():
            raise TargetError(
                f"{path.parent} has neither config.json nor {FILE}: it is no model directory; give one with both and "
                "safetensors, or, to whet serve, a directory that `whet tune` or `whet apply` wrote"
            )
        raise TargetError(
            f"{path.parent} has no {FILE}: put the checkpoint's there "
            "(transformers: AutoTokenizer.from_pretrained(NAME).save_pretrained(DIR) writes it)"
        )
    return read_tokenizer(package, path)


def _types(described: object, name: str) -> list[object]:
    """Return the types of the steps of a part of tokenizer.json."""
    return [part.get("type") for part in parts(described, name)]
