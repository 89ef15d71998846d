"""Each family of chat templates has a format in which models write calls of tools.

Sources: the chat templates of Qwen2.5, Qwen3 and Hermes, of Llama 3.1 and 3.2, of Mistral, Granite and Jamba, and
docs.vllm.ai, "Tool Calling", whose names of parsers these are.
"""

import json
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from whet.errors import OptionError
from whet.server.output_constraint import OutputConstraint

_MOST_CALLS = 32  # in one answer that must call
_WHITESPACE = r"\x20"  # as models were shown calls, written by json.dumps
_Rule = tuple[str, str]  # of a grammar: its name and its body
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ToolFormat:
    """A format says how calls stand in a model's text: JSON objects between two marks.

    Attributes:
        name: What `--tool-call-parser` calls it.
        begin: The mark before a call. It may be a special token.
        end: The mark after it; "" for none.
        inner: The whitespace between a mark and a call, where a grammar writes one.
        is_list: The calls of an answer stand in one JSON list between one pair of marks.
        separator: What stands between two calls.
        arguments: The key of the arguments, where a grammar writes a call. Both usual keys are read.
        is_bare: A call may begin an answer without the mark, and a grammar writes it so.
        id_length: The letters and digits of a call's id, where the template wants so many; 0: any id will do.
    """

    name: str
    begin: str
    end: str = ""
    inner: str = ""
    is_list: bool = False
    separator: str = ""
    arguments: str = "arguments"
    is_bare: bool = False
    id_length: int = 0

    def new_id(self) -> str:
        if not self.id_length:
            return f"call_{secrets.token_hex(12)}"
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(self.id_length))


@dataclass(frozen=True)
class CallGrammar:
    """Write the structure of answers with calls in a format.

    Attributes:
        functions: The JSON schema of each function's arguments, by its name; None for one without parameters.
        token_id: Gives the special token that reads so, or None where it is text.
        several: Whether there may be more than one call.
    """

    form: ToolFormat
    functions: Mapping[str, Mapping[str, Any] | None]
    token_id: Callable[[str], int | None]
    several: bool

    def required(self) -> OutputConstraint:
        """Return the structure of an answer that is nothing but calls."""
        return self._structure(self._calls("start", "call", self._begin))

    def strict(self) -> OutputConstraint:
        """Return the structure of an answer that may be text or calls, whose calls match their schemas."""
        if self.form.is_bare:
            rules = [("start", "calls | TEXT"), ("TEXT", r"/([^{\s](.|\n)*)?/")]
            return self._structure([*rules, *self._calls("calls", "call", self._begin)])
        if self.token_id(self.form.begin) is not None:
            rules = [("start", "TEXT calls?"), ("TEXT", r"/(.|\n)*/")]
            return self._structure([*rules, *self._calls("calls", "call", self._begin)])
        # Text ends lazily with the mark. So the first call has its mark in `until`, and none of its own.
        rules = [("start", "TEXT | until calls"), ("TEXT", r"/(.|\n)*/")]
        rules.append(("until[lazy]", rf"/(.|\n)*/ {_literal(self.form.begin)}"))
        if self.form.is_list:
            return self._structure([*rules, *self._calls("calls", "call", "")])
        return self._structure([*rules, *self._calls("calls", "first", self._begin), ("first", self._call(""))])

    @property
    def _begin(self) -> str:
        return "" if self.form.is_bare else self._mark(self.form.begin)

    def _calls(self, name: str, first: str, begin: str) -> list[_Rule]:
        """Return the rules of all calls of an answer.

        `name` and `first` name the rules of all calls and of the first one. `begin` is the mark before the list, or
        before each call, as a grammar writes it; "" for none.
        """
        calls = f"{first} ({_literal(self.form.separator)} call){{0,{_MOST_CALLS - 1}}}" if self.several else first
        if not self.form.is_list:
            return [(name, calls), ("call", self._call(begin))]
        inner, end = _literal(self.form.inner), self._mark(self.form.end)
        return [(name, f'{begin} {inner} "[" {calls} "]" {inner} {end}'), ("call", self._options)]

    def _call(self, begin: str) -> str:
        """Return the body of the rule of one call between its marks."""
        inner = _literal(self.form.inner)
        return f"{begin} {inner} ({self._options}) {inner} {self._mark(self.form.end)}"

    @property
    def _options(self) -> str:
        return " | ".join(f"object_{number}" for number in range(len(self.functions)))

    def _mark(self, text: str) -> str:
        """Return a mark as a grammar writes it: by its number where it is a special token."""
        number = self.token_id(text) if text else None
        return _literal(text) if number is None else f"<[{number}]>"

    def _structure(self, rules: list[_Rule]) -> OutputConstraint:
        """Return a grammar of rules, to which those of the JSON object of a call are added for each function."""
        for number, (name, parameters) in enumerate(self.functions.items()):
            schema = {"type": "object", **parameters} if parameters is not None else dict(_NO_PARAMETERS)
            schema["x-guidance"] = {"whitespace_pattern": _WHITESPACE}
            head = _literal(f'{{"name": {json.dumps(name)}, "{self.form.arguments}": ')
            rules.append((f"object_{number}", f'{head} arguments_{number} "}}"'))
            rules.append((f"arguments_{number}", f"%json {json.dumps(schema)}"))
        return OutputConstraint.grammar("\n".join(f"{name}: {body}" for name, body in rules))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


FORMATS: Mapping[str, ToolFormat] = {
    one.name: one
    for one in (
        ToolFormat("hermes", "<tool_call>", "</tool_call>", inner="\n", separator="\n"),
        ToolFormat("llama3_json", "<|python_tag|>", separator="; ", arguments="parameters", is_bare=True),
        ToolFormat("mistral", "[TOOL_CALLS]", is_list=True, separator=", ", id_length=9),
        ToolFormat("granite", "<|tool_call|>", is_list=True, separator=", "),
        ToolFormat("jamba", "<tool_calls>", "</tool_calls>", is_list=True, separator=", "),
        ToolFormat("phi4_mini_json", "functools", is_list=True, separator=", "),
    )
}


def find_format(template: str, name: str | None = None) -> ToolFormat | None:
    """Return the format called `name`, or else the one that a chat template shows; None where it shows none.

    Raises:
        OptionError: There is no format of this name.
    """
    if name is not None:
        if name not in FORMATS:
            raise OptionError(f"--tool-call-parser {name}: write one of {', '.join(FORMATS)}")
        return FORMATS[name]
    if "tools" not in template:
        return None
    return next((one for one in FORMATS.values() if one.begin in template), None)
