"""Read the tools of requests for chat, and find what they mean for the answer: structure, parser, tokens.

Source: platform.openai.com/docs/guides/function-calling.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from whet.server.http.errors import invalid
from whet.server.http.structures import check_schema
from whet.server.output_constraint import OutputConstraint
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer
from whet.server.tool_formats import FORMATS, CallGrammar, ToolFormat
from whet.server.tool_parser import ToolParser

MAX_TOOLS = 128
_GIVEN = ConfigDict(extra="allow", strict=True, protected_namespaces=())  # the chat template gets all that was given

FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]


class Function(BaseModel):
    """The model may call this function. Without `parameters`, the schema of its arguments, it has none."""

    model_config = _GIVEN

    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(check_schema)] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool is a function; there is no other kind."""

    model_config = _GIVEN

    type: Literal["function"]
    function: Function


class FunctionChoice(BaseModel):
    """This names a function."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: FunctionName


class NamedChoice(BaseModel):
    """An answer must call this function."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["function"]
    function: FunctionChoice


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS), Field(fail_fast=True)]
ToolChoice = Literal["none", "auto", "required"] | NamedChoice


def as_template_reads(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """Return tools as the chat template gets them, with what was given and nothing else. None where there are none."""
    return [tool.model_dump(exclude_unset=True) for tool in tools] if tools else None


def with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's fields with the arguments of its calls as objects, where they are JSON texts of objects.

    Chat templates write objects as JSON themselves; a text would be quoted a second time.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def fault(tools: list[Tool] | None, choice: ToolChoice | None) -> tuple[str, str] | None:
    """Return the field that is wrong and why, where tools and the choice among them do not fit; else None."""
    names = [tool.function.name for tool in tools or ()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return "tools", f"tools: two functions are called {twice}"
    if choice == "required" and not names:
        return "tool_choice", 'tool_choice "required" needs tools'
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        return "tool_choice", f"tool_choice: there is no function {choice.function.name} among the tools"
    return None


@dataclass(frozen=True)
class ToolUse:
    """This is what the tools of one request mean for its answer.

    Attributes:
        functions: The schema of each function's arguments that may be called, by name.
        is_required: The answer is nothing but calls.
        is_strict: Calls match their schemas even where the model may answer with text.
        several: There may be more than one call.
    """

    form: ToolFormat
    functions: Mapping[str, dict[str, Any] | None]
    is_required: bool
    is_strict: bool
    several: bool

    def parser(self) -> ToolParser:
        return ToolParser(self.form, self.functions.keys(), several=self.several)

    def params(self, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return how an answer is sampled: with its structure, and with the marks of calls as part of its text."""
        marks = [tokenizer.special_id(mark) for mark in (self.form.begin, self.form.end) if mark]
        shown = tuple(token_id for token_id in marks if token_id is not None)
        structure = self._structure(tokenizer.special_id) if params.structure is None else params.structure
        return replace(params, shown_token_ids=shown, structure=structure)

    def _structure(self, token_id: Callable[[str], int | None]) -> OutputConstraint | None:
        grammar = CallGrammar(self.form, self.functions, token_id, self.several)
        if self.is_required:
            return grammar.required()
        return grammar.strict() if self.is_strict else None


def tool_use(
    tools: list[Tool] | None, choice: ToolChoice | None, *, several: bool, form: ToolFormat | None
) -> ToolUse | None:
    """Return what a request's tools mean for its answer; None where no tool may be called.

    Raises:
        ApiError: 400, where it is not known how the model writes calls.
    """
    if not tools or choice == "none":
        return None
    if form is None:
        names = ", ".join(FORMATS)
        message = (
            f"tools: it is not known how this model writes calls; start the server with --tool-call-parser: {names}"
        )
        raise invalid(message, "tools")
    named = choice.function.name if isinstance(choice, NamedChoice) else None
    functions = {one.function.name: one.function for one in tools if named in (None, one.function.name)}
    return ToolUse(
        form,
        {name: function.parameters for name, function in functions.items()},
        is_required=named is not None or choice == "required",
        is_strict=all(function.strict for function in functions.values()),
        several=several and named is None,
    )
