"""A structure says what an output must be: JSON by a schema, a regular expression, a choice, or a grammar."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from whet.errors import RequestError

Kind = Literal["json_schema", "regex", "choice", "grammar"]

MAX_CHARACTERS = 256 * 2**10  # of one structure: compiling takes time and memory that grow with it
_ANY_OBJECT = '{"type":"object"}'


@dataclass(frozen=True)
class OutputConstraint:
    """A structure is what the text of an output must match, as a field of SamplingParams. The class methods make one.

    Every token is chosen among those that the structure allows. The output ends with the reason "stop" once nothing
    can follow. Two structures are equal if their fields are, and a compiled structure is kept for the next request.

    Attributes:
        kind: "json_schema", "regex", "choice" or "grammar".
        text: The schema or the list of choices as JSON, the expression, or the grammar.
        whitespace_pattern: For JSON: the regular expression of the whitespace between its parts. "" allows none;
            None allows up to 40 characters: a model that begins to write spaces often writes nothing else.
    """

    kind: Kind
    text: str
    whitespace_pattern: str | None = None

    @classmethod
    def json_schema(
        cls, schema: Mapping[str, Any] | bool | str, whitespace_pattern: str | None = None
    ) -> "OutputConstraint":
        """Return the structure of JSON that is valid by a schema, given as an object or as its JSON text.

        A pydantic model gives one by `model_json_schema`.
        """
        text = schema if isinstance(schema, str) else _as_json(schema)
        return cls("json_schema", text, whitespace_pattern)

    @classmethod
    def json_object(cls, whitespace_pattern: str | None = None) -> "OutputConstraint":
        """Return the structure of any JSON object."""
        return cls("json_schema", _ANY_OBJECT, whitespace_pattern)

    @classmethod
    def regex(cls, pattern: str) -> "OutputConstraint":
        """Return the structure of texts that a regular expression matches as a whole. Look-around is not supported."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> "OutputConstraint":
        """Return the structure of an output that is one of several texts."""
        return cls("choice", _as_json(list(choices)))

    @classmethod
    def grammar(cls, text: str) -> "OutputConstraint":
        """Return the structure of a context-free grammar, in llama.cpp's GBNF or in llguidance's dialect of Lark."""
        return cls("grammar", text)

    def check(self) -> None:
        """Raise RequestError for fields that no structure can have. Whether it compiles is seen when it is compiled."""
        if self.kind not in get_args(Kind):
            raise _wrong(f"structure.kind={self.kind!r}: write one of {', '.join(get_args(Kind))}")
        if not isinstance(self.text, str) or not self.text:
            raise _wrong("structure.text: it is a text that is not empty")
        if len(self.text) > MAX_CHARACTERS:
            raise _wrong(f"the structure has {len(self.text)} characters; {MAX_CHARACTERS} is the most")
        if self.whitespace_pattern is not None and self.kind != "json_schema":
            raise _wrong("a whitespace pattern is only for JSON")
        if self.kind == "choice":
            _check_choices(self.text)


def _check_choices(text: str) -> None:
    try:
        choices = json.loads(text)
    except ValueError:
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
        raise _wrong("choices are a list of at least one text, none of them empty")


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong(f"the structure cannot be written as JSON: {error}") from error


def _wrong(message: str) -> RequestError:
    return RequestError(message, param="structure")
