"""Describe the requests that clients of OpenAI's API send. Refused fields are in whet.server.http.unsupported.

The docstrings of the public classes are published as descriptions in /openapi.json.

Source: platform.openai.com/docs/api-reference (completions, chat), and the fields that vLLM added to them.
"""

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from whet.server.http import tools as tool_fields
from whet.server.http import unsupported
from whet.server.http.structures import Structured
from whet.server.sampling_params import (
    LEAST_REPETITION_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    SamplingParams,
)

MAX_CHOICES = 128
MAX_LOGPROBS = 20
_MAX_STOPS = 64
_MAX_BIASES = 1024
_MAX_PARTS = 1024
_MAX_MESSAGES = 16_384
_MAX_PROMPTS = 65_536
_MAX_INT = 2**31 - 1
_MAX_STOP = 4096  # characters of one stop string
_MAX_NAME = 1024  # characters of a name or a salt
_TAKEN_VARIABLES = frozenset(
    "add_generation_prompt chat_template continue_final_message messages self tokenize tools".split()
)


def _whole(value: object) -> object:
    """Return a float without fraction as an int: JSON has one kind of number, so 16.0 is 16."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _few(value: object) -> object:
    """Refuse a dict with too many entries at once; pydantic would first validate each entry."""
    if isinstance(value, dict) and len(value) > _MAX_BIASES:
        raise PydanticCustomError("too_long", f"at most {_MAX_BIASES} entries")
    return value


# Stop at the first wrong item: errors for millions of items would take gigabytes, and would delay other requests.
Each = Field(fail_fast=True)
Whole = BeforeValidator(_whole)  # put it after the bounds: the JSON schema leaves out bounds that come later
Penalty = Annotated[float, Field(ge=-2, le=2)]
Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP)]
TokenId = Annotated[int, Field(ge=0, le=_MAX_INT)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenIds = Annotated[list[TokenId], Each]
Texts = Annotated[list[str], Field(max_length=_MAX_PROMPTS), Each]
Prompt = str | Texts | TokenIds | Annotated[list[TokenIds], Field(max_length=_MAX_PROMPTS), Each]
Name = Annotated[str, Field(max_length=_MAX_NAME)]
Count = Annotated[int, Field(ge=0, le=_MAX_INT), Whole]


class _Request(BaseModel):
    # strict means that "5" is not accepted as a number, nor 1 as a boolean
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)
    refused: ClassVar[unsupported.Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_known(cls, fields: object) -> object:
        """Refuse parameters that are known and not supported, before other checks."""
        unsupported.check_supported(fields, cls.refused)
        return fields

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the refused fields to the schema."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        schema["properties"] = {**schema.get("properties", {}), **unsupported.as_schema(cls.refused)}
        return schema


# Fields that SamplingParams takes as they are; without a value, its own defaults hold, which are those of the API.
_AS_GIVEN = "temperature min_p presence_penalty frequency_penalty repetition_penalty min_tokens".split()
_BIASES = {"maxProperties": _MAX_BIASES, "propertyNames": {"pattern": "^[0-9]{1,10}$"}}


class StreamOptions(_Request):
    """Hold the options of a stream. With `include_usage`, a last chunk states the number of tokens."""

    refused = {"continuous_usage_stats": (False,)}

    include_usage: bool | None = None


class Sampling(Structured, _Request):
    """Hold the fields that chat and text completions share."""

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), Whole] | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_MAX_INT), Whole] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=LEAST_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = None
    logit_bias: Annotated[dict[str, Bias], BeforeValidator(_few), Field(json_schema_extra=_BIASES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64), Whole] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=_MAX_STOPS), Each] | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=_MAX_BIASES)] | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=_MAX_NAME)] | None = None

    @field_validator("logit_bias")
    @classmethod
    def _check_ids(cls, biases: dict[str, float] | None) -> dict[str, float] | None:
        if not all(key.isascii() and key.isdigit() and len(key) <= 10 for key in biases or ()):
            raise PydanticCustomError("logit_bias", 'its keys are token ids, as text: {"50256": -100}')
        return biases

    @model_validator(mode="after")
    def _check_options(self) -> "Sampling":
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "stream_options is only for stream: true")
        return self

    @property
    def num_choices(self) -> int:
        """Return the number of choices for each prompt."""
        return self.n or 1

    @property
    def has_usage_chunk(self) -> bool:
        """Return whether the stream ends with a chunk that states the number of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_params(
        self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None, choice: int = 0
    ) -> SamplingParams:
        """Return the sampling parameters of one choice.

        Args:
            max_tokens: The limit of generated tokens; None for the rest of the model's context.
            logprobs: The number of alternatives for each generated token; None for no log-probabilities.
            prompt_logprobs: The same for the tokens of the prompt.
            choice: The number of the choice within its prompt. It is added to the request's seed.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        given = {name: value for name in _AS_GIVEN if (value := getattr(self, name)) is not None}
        return SamplingParams(
            **given,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else max(self.top_p, 1e-6),  # with 0, only the most probable token is drawn
            seed=None if self.seed is None else (self.seed + choice) % 2**63,
            max_tokens=max_tokens,
            stop=tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            logit_bias={int(key): value for key, value in (self.logit_bias or {}).items()},
            structure=None if (asked := self.structure()) is None else asked[1],
        )


class CompletionRequest(Sampling):
    """Ask for the text that follows one prompt or several (POST /v1/completions)."""

    refused = unsupported.COMPLETION

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), Whole] | None = None
    best_of: Annotated[int, Whole] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    add_special_tokens: bool | None = None
    state: Name | None = None

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _say_once(cls, value: object, check: Any) -> Prompt:
        """Replace pydantic's errors, one for each of the four kinds of prompt, by one message."""
        try:
            prompt: Prompt = check(value)
        except ValueError:
            message = "a prompt is text, a list of texts, a list of token ids, or a list of such lists"
            raise PydanticCustomError("prompt", message) from None
        return prompt

    @model_validator(mode="after")
    def _check_supported(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != self.num_choices:
            raise PydanticCustomError("best_of", "best_of: this server returns all that it samples; leave it out")
        return self

    @property
    def needs_text(self) -> bool:
        """Return whether the answer needs the prompt's text, to echo it or to count text offsets from its beginning."""
        return bool(self.echo) or self.logprobs is not None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return the prompts."""
        return several(self.prompt)


def several(given: Prompt) -> list[str | list[int]]:
    """Return prompts as a list. A text is one prompt, and so is a list of token ids."""
    is_one = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    return cast("list[str | list[int]]", [given] if is_one else given)


class TextPart(_Request):
    """Hold a part of a message's content. Only text is supported."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """Hold one message of a conversation. Further fields (name, tool_call_id) are passed on to the chat template."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | Annotated[list[TextPart], Field(max_length=_MAX_PARTS), Each] | None = None

    def as_template_reads(self) -> dict[str, Any]:
        """Return the message for the chat template. The parts of its content are joined, one a line."""
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        return {**tool_fields.with_objects(self.model_extra or {}), "role": self.role, "content": content or ""}

    @field_validator("content", mode="wrap")
    @classmethod
    def _say_once(cls, value: object, check: Any) -> Any:
        """Replace pydantic's errors about a part that is not text by one message."""
        try:
            return check(value)
        except ValueError:
            if not isinstance(value, list):
                raise
            message = 'this server reads text only: {"type": "text", "text": ...}'
            raise PydanticCustomError("content", message) from None


def _check_variables(variables: dict[str, Any]) -> dict[str, Any]:
    taken = sorted(_TAKEN_VARIABLES & variables.keys())
    if taken:
        raise PydanticCustomError("variables", f"{taken[0]} is no variable that a request may give the chat template")
    return variables


Variables = Annotated[
    dict[str, Any],
    AfterValidator(_check_variables),
    Field(json_schema_extra={"propertyNames": {"not": {"enum": sorted(_TAKEN_VARIABLES)}}}),
]
Messages = Annotated[list[Message], Field(min_length=1, max_length=_MAX_MESSAGES), Each]


class ChatRequest(Sampling):
    """Ask for the next message of a conversation (POST /v1/chat/completions)."""

    refused = unsupported.CHAT

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), Whole] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Variables | None = None
    tools: tool_fields.Tools | None = None
    tool_choice: tool_fields.ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _check_supported(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs needs logprobs: true")
        if (wrong := tool_fields.fault(self.tools, self.tool_choice)) is not None:
            raise PydanticCustomError(*wrong)
        if self.tools and self.tool_choice != "none" and (asked := self.structure()) is not None:
            message = f'tools and {asked[0]} both say what the answer is: give one of them, or tool_choice "none"'
            raise PydanticCustomError("tools", message)
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Return the number of alternatives for each token, or None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeRequest(_Request):
    """Ask for the tokens of a prompt, or of messages in the form of the chat template (POST /tokenize)."""

    refused = unsupported.TOKENIZE

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: Variables | None = None
    tools: tool_fields.Tools | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "give a prompt or messages")
        return self


class DetokenizeRequest(_Request):
    """Ask for the text of a list of tokens (POST /detokenize)."""

    model: Name | None = None
    tokens: TokenIds
