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
from whet.server.structure import Structure

_MOST_CALLS = 32  # in one answer that must call
_WHITESPACE = r"\x20"  # as models were shown calls, written by json.dumps
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
        """Return an id for a call."""
        if not self.id_length:
            return f"call_{secrets.token_hex(12)}"
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(self.id_length))

    def required(
        self, functions: Mapping[str, Mapping[str, Any] | None], token_id: Callable[[str], int | None], *, several: bool
    ) -> Structure:
        """Return the structure of an answer that is nothing but calls.

        Args:
            functions: The JSON schema of each function's arguments, by its name; None for one without parameters.
            token_id: Gives the special token that reads so, or None where it is text.
            several: Whether there may be more than one call.
        """
        more = f"({_literal(self.separator)} call){{0,{_MOST_CALLS - 1}}}" if several else ""
        begin = "" if self.is_bare else _mark(self.begin, token_id)
        opening, closing = f"{begin} {_literal(self.inner)}", f"{_literal(self.inner)} {_mark(self.end, token_id)}"
        if self.is_list:
            rules = [f'start: {opening} "[" call {more} "]" {closing}', f"call: {_options(functions)}"]
        else:
            rules = [f"start: call {more}", f"call: {opening} ({_options(functions)}) {closing}"]
        return Structure.grammar("\n".join([*rules, *self._objects(functions)]))

    def strict(
        self, functions: Mapping[str, Mapping[str, Any] | None], token_id: Callable[[str], int | None], *, several: bool
    ) -> Structure:
        """Return the structure of an answer that may be text or calls, whose calls match their schemas.

        Args:
            functions: See `required`.
            token_id: See `required`.
            several: See `required`.
        """
        calls = self.required(functions, token_id, several=several).text.replace("start:", "calls:", 1)
        if self.is_bare:
            rules = ["start: calls | TEXT", r"TEXT: /([^{\s](.|\n)*)?/"]
        elif token_id(self.begin) is not None:
            rules = ["start: TEXT calls?", r"TEXT: /(.|\n)*/"]
        else:
            # Text ends lazily where the mark does; so the mark stands in this rule, not in those of the calls.
            calls = calls.replace(_literal(self.begin), "", 1) if self.is_list else calls
            rules = ["start: TEXT | until " + ("calls" if self.is_list else "rest"), r"TEXT: /(.|\n)*/"]
            rules.append(f"until[lazy]: /(.|\\n)*/ {_literal(self.begin)}")
            if not self.is_list:
                more = f"({_literal(self.separator)} call){{0,{_MOST_CALLS - 1}}}" if several else ""
                closing = f"{_literal(self.inner)} {_mark(self.end, token_id)}"
                rules.append(f"rest: {_literal(self.inner)} ({_options(functions)}) {closing} {more}")
                calls = calls.partition("\n")[2]
        return Structure.grammar("\n".join([*rules, calls]))

    def _objects(self, functions: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
        rules = []
        for number, (name, parameters) in enumerate(functions.items()):
            schema = {"type": "object", **parameters} if parameters is not None else dict(_NO_PARAMETERS)
            schema["x-guidance"] = {"whitespace_pattern": _WHITESPACE}
            head = _literal(f'{{"name": {json.dumps(name)}, "{self.arguments}": ')
            rules.append(f'object_{number}: {head} arguments_{number} "}}"')
            rules.append(f"arguments_{number}: %json {json.dumps(schema)}")
        return rules


def _options(functions: Mapping[str, Any]) -> str:
    return " | ".join(f"object_{number}" for number in range(len(functions)))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _mark(text: str, token_id: Callable[[str], int | None]) -> str:
    """Return a mark as a grammar writes it: by its number where it is a special token."""
    number = token_id(text) if text else None
    return _literal(text) if number is None else f"<[{number}]>"


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
    """Return the format in which a model writes calls, or None where its chat template has none that is known.

    Args:
        template: The text of the model's chat template.
        name: The format that was asked for instead.

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
