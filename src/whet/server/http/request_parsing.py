"""Parse and validate the bodies of requests, tokenise their prompts, and answer requests about tokens.

This work holds the interpreter's lock for a time that grows with the body. So a separate process reads bodies of more
than SMALL bytes, with the code of this module (request_parsing_process.py). The server reads smaller ones itself.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from whet.server.http.errors import ApiError, as_api_errors, invalid, of_validation
from whet.server.http.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    Sampling,
    TokenizeRequest,
)
from whet.server.http.tools import as_template_reads
from whet.server.request_limits import RequestLimits
from whet.server.schema_size import nested
from whet.server.text import Tokenizer

Kind = TypeVar("Kind", bound=BaseModel)

SMALL = 16 * 2**10  # up to so many bytes, a body is read in the server
_LEAST_READ = 64 * 2**10  # bytes of text, or tokens, that /tokenize and /detokenize take even if the model takes fewer
MAX_LEVELS = 200  # lists and objects within each other; far from where Python gives up with RecursionError
_NOT_JSON = "the body must be a JSON object, sent with Content-Type: application/json"

KINDS: dict[str, type[BaseModel]] = {
    kind.__name__: kind for kind in (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)
}


@dataclass(frozen=True, kw_only=True)
class Served(RequestLimits):
    """Hold the names of the served model, and its limits."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Prompts:
    """Hold the token ids of each prompt, and its text if the answer needs it (else an empty text)."""

    token_ids: Sequence[Sequence[int]]
    texts: Sequence[str]


def unknown_model(name: str, names: Sequence[str]) -> ApiError:
    said = f"there is no model {name!r} here; use one of: {', '.join(names)}"
    return ApiError(404, said, param="model", code="model_not_found")


def parse_body(kind: type[Kind], content: bytes, content_type: str) -> Kind:
    """Return a body as an instance of `kind`.

    Raises:
        ApiError: It is none.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if not (media_type == "application/json" or (media_type.startswith("application/") and "+json" in media_type)):
        raise invalid(_NOT_JSON)
    try:
        fields = json.loads(content) if content else None
    except json.JSONDecodeError as error:
        raise invalid(f"the body is not JSON: {error.msg}, at character {error.pos}", code="invalid_json") from error
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # no Unicode, a number of thousands of digits
        raise invalid("the body cannot be read as JSON", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise invalid(_NOT_JSON)
    may_be_deep = content.count(b"[") + content.count(b"{") > MAX_LEVELS
    if may_be_deep and any(level > MAX_LEVELS for level, _ in nested(fields)):
        raise _too_deep()
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise of_validation(error) from None


def _too_deep() -> ApiError:
    message = f"lists and objects in the body are nested more than {MAX_LEVELS} levels deep: nest them less"
    return invalid(message, code="invalid_json")


class Readers:
    """Read the bodies of requests to several models. Methods raise ApiError where a request cannot be served."""

    def __init__(self, models: Sequence[tuple[Tokenizer, Served]], artefacts: Sequence[str] = ()) -> None:
        """Make the readers; `artefacts` are the names of other models, which make no text."""
        self._readers = [(served, Reader(tokenizer, served)) for tokenizer, served in models]
        self._artefacts = tuple(artefacts)

    def of(self, name: str | None) -> "Reader":
        """Return the reader for the model of a name; for the first one where no name is given."""
        for served, reader in self._readers:
            if name is None or name in served.names:
                return reader
        if name is None or name in self._artefacts:
            which = self._artefacts[0] if name is None else name
            raise invalid(f"{which} makes no text: ask it by POST /v2/models/{which}/infer", "model")
        raise unknown_model(name, [*(one for served, _ in self._readers for one in served.names), *self._artefacts])

    def parse(self, kind: type[BaseModel], content: bytes, content_type: str) -> "tuple[Any, Reader]":
        """Return the body as an instance of `kind`, with all its fields checked, and the reader for its model."""
        body = parse_body(kind, content, content_type)
        return body, self.of(getattr(body, "model", None))


class Reader:
    """Read the prompts for one model. Every method raises ApiError where the request cannot be served."""

    def __init__(self, tokenizer: Tokenizer, served: Served) -> None:
        self._tokenizer, self._served = tokenizer, served

    @as_api_errors()
    def prompts(self, body: Sampling) -> Prompts:
        """Return the tokens of a request's prompts. Each fits into the model's context, with room for the answer."""
        if isinstance(body, ChatRequest):
            text = self._conversation(body)
            given: Sequence[str | list[int]] = [text]
            begins, add_special, needs_text = True, False, False
            max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        else:
            assert isinstance(body, CompletionRequest)
            begins = body.state is None  # what goes on from a state gets no special tokens, unless it asks for them
            add_special = begins if body.add_special_tokens is None else body.add_special_tokens
            given, needs_text = body.prompts, body.needs_text
            max_tokens = body.max_tokens
        token_ids = [self._prompt_ids(prompt, add_special=add_special, begins=begins) for prompt in given]
        for ids in token_ids:
            self._served.check_length(len(ids), max_tokens)
        return Prompts(token_ids, [self._text(prompt) if needs_text else "" for prompt in given])

    @as_api_errors()
    def answer(self, body: TokenizeRequest | DetokenizeRequest) -> bytes:
        """Return the answer to POST /tokenize or /detokenize, as JSON."""
        if isinstance(body, DetokenizeRequest):
            return _json({"prompt": self._detokenized(body)})
        if body.messages is not None:
            text, add_special = self._conversation(body), body.add_special_tokens is True
        else:
            text, add_special = body.prompt or "", body.add_special_tokens is not False
        self._check_bytes(text, _LEAST_READ)
        ids = self._tokenizer.encode(text, add_special)
        pieces = [self._tokenizer.token_text(id) for id in ids] if body.return_token_strs else None
        max_model_len = self._served.max_model_len
        return _json({"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": pieces})

    def renders(self, body: BaseModel) -> bool:
        """Return whether a body's prompts come from the checkpoint's chat template, which may take seconds."""
        return getattr(body, "messages", None) is not None and not self._tokenizer.chat_template.is_plain

    def _conversation(self, body: ChatRequest | TokenizeRequest) -> str:
        """Return the text that the model's chat template makes of a request's messages."""
        messages: Sequence[Message] = body.messages or ()
        read = [message.as_template_reads() for message in messages]
        return self._tokenizer.chat(
            read, body.add_generation_prompt is not False, body.chat_template_kwargs, as_template_reads(body.tools)
        )

    def _prompt_ids(self, prompt: str | Sequence[int], *, add_special: bool, begins: bool) -> Sequence[int]:
        if isinstance(prompt, str):
            self._check_bytes(prompt)
            prompt = self._tokenizer.encode(prompt, add_special)
        if begins and not prompt and self._tokenizer.bos_id is not None:
            return [self._tokenizer.bos_id]
        return self._served.prompt_ids(prompt)

    def _text(self, prompt: str | Sequence[int]) -> str:
        """Return the text of a prompt, special tokens included."""
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, skip_special=False)

    def _detokenized(self, body: DetokenizeRequest) -> str:
        self._served.check_tokens(body.tokens, "tokens")
        most = max(self._served.max_model_len, _LEAST_READ)
        if len(body.tokens) > most:
            raise invalid(f"{len(body.tokens)} tokens; this server reads {most} at most", "tokens")
        return self._tokenizer.decode(body.tokens, skip_special=False)

    def _check_bytes(self, text: str, least: int = 0) -> None:
        """Refuse a text that is too long for the model, unless it has at most `least` bytes."""
        most = self._tokenizer.most_bytes(self._served.max_model_len)
        self._served.check_bytes(text, None if most is None else max(most, least))


def _json(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
