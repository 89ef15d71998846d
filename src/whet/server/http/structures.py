"""Read the fields that ask for structured output, in OpenAI's, vLLM's, llama.cpp's and SGLang's words.

Sources: platform.openai.com/docs/guides/structured-outputs; docs.vllm.ai, "Structured Outputs"; llama.cpp's
tools/server/README.md; docs.sglang.ai, "Structured Outputs".
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from whet.errors import RequestError
from whet.server.output_constraint import MAX_CHARACTERS, OutputConstraint

_STRICT = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


def check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema, once it is known that it can be written as JSON. The body's reader limits its levels.

    Raises:
        PydanticCustomError: It cannot.
    """
    try:
        OutputConstraint.json_schema(schema)
    except RequestError as error:
        raise PydanticCustomError("no_schema", "{why}", {"why": str(error)}) from error
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(check_schema)] | bool
SchemaOrText = Schema | Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
Pattern = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
Whitespace = Annotated[str, Field(max_length=1024)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHARACTERS), Field(fail_fast=True)
]


class JsonSchemaFormat(BaseModel):
    """An answer must be valid by this schema, whether or not `strict` is set."""

    model_config = _STRICT

    name: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """An answer is any text, any JSON object, or JSON by a schema."""

    model_config = _STRICT

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None  # llama.cpp's place for it

    @model_validator(mode="after")
    def _check_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self._asked_schema is None:
            example = '{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}'
            raise PydanticCustomError("json_schema", "json_schema needs the schema: {example}", {"example": example})
        return self

    def structure(self, whitespace: str | None) -> OutputConstraint | None:
        """Return what the answer must match; None for any text."""
        if self.type == "text":
            return None
        schema = self._asked_schema
        if schema is None:
            return OutputConstraint.json_object(whitespace)
        return OutputConstraint.json_schema(schema, whitespace)

    @property
    def _asked_schema(self) -> dict[str, Any] | bool | None:
        inner = self.json_schema.schema_ if self.type == "json_schema" and self.json_schema is not None else None
        return self.schema_ if inner is None else inner


class StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs` is one of json, regex, choice, grammar and json_object."""

    model_config = _STRICT

    json_: Annotated[SchemaOrText | None, Field(alias="json")] = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None
    whitespace_pattern: Whitespace | None = None
    disable_any_whitespace: bool | None = None
    structural_tag: None = None

    @model_validator(mode="after")
    def _check_any(self) -> "StructuredOutputs":
        if not any(self.structures(None)):
            message = "structured_outputs is one of json, regex, choice, grammar and json_object"
            raise PydanticCustomError("structured_outputs", message)
        return self

    def structures(self, whitespace: str | None) -> Iterator[tuple[str, OutputConstraint]]:
        """Yield each structure that is asked for, with the name of its field."""
        whitespace = "" if self.disable_any_whitespace else self.whitespace_pattern or whitespace
        if self.json_ is not None:
            yield "structured_outputs.json", OutputConstraint.json_schema(self.json_, whitespace)
        if self.regex is not None:
            yield "structured_outputs.regex", OutputConstraint.regex(self.regex)
        if self.choice is not None:
            yield "structured_outputs.choice", OutputConstraint.choice(self.choice)
        if self.grammar is not None:
            yield "structured_outputs.grammar", OutputConstraint.grammar(self.grammar)
        if self.json_object:
            yield "structured_outputs.json_object", OutputConstraint.json_object(whitespace)


class Structured(BaseModel):
    """Hold the fields of a request that ask for a structure; a request gives one of them at most."""

    model_config = _STRICT

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None
    guided_whitespace_pattern: Whitespace | None = None
    json_schema: SchemaOrText | None = None
    regex: Pattern | None = None
    ebnf: Pattern | None = None
    grammar: Pattern | None = None

    @model_validator(mode="after")
    def _check_one_structure(self) -> "Structured":
        names = [name for name, _ in self._structures()]
        if len(names) > 1:
            message = f"{names[0]} and {names[1]} both ask for a structure: give one of them"
            raise PydanticCustomError(names[1].partition(".")[0], message)
        return self

    def structure(self) -> tuple[str, OutputConstraint] | None:
        """Return what the output must match, after the name of the field that says so. None: nothing is asked for."""
        return next(self._structures(), None)

    def _structures(self) -> Iterator[tuple[str, OutputConstraint]]:
        whitespace = self.guided_whitespace_pattern
        formatted = self.response_format.structure(whitespace) if self.response_format is not None else None
        if formatted is not None:
            yield "response_format", formatted
        if self.structured_outputs is not None:
            yield from self.structured_outputs.structures(whitespace)
        for name in ("guided_json", "json_schema"):
            if (schema := getattr(self, name)) is not None:
                yield name, OutputConstraint.json_schema(schema, whitespace)
        for name in ("guided_regex", "regex"):
            if (pattern := getattr(self, name)) is not None:
                yield name, OutputConstraint.regex(pattern)
        if self.guided_choice is not None:
            yield "guided_choice", OutputConstraint.choice(self.guided_choice)
        for name in ("guided_grammar", "grammar", "ebnf"):
            if (text := getattr(self, name)) is not None:
                yield name, OutputConstraint.grammar(text)
