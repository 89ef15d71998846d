"""Turn conversations into prompts with the checkpoint's own Jinja template, in a sandbox.

Source: what transformers' `apply_chat_template` gives a template to work with: loop controls, raise_exception,
strftime_now, a tojson that keeps Unicode, the special tokens by name, and blocks marked as `generation`.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from whet.errors import RequestError, TargetError, reason

FILE = "chat_template.jinja"
PLAIN = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


_GENERATION = re.compile(r"\{%[-+]?\s*generation\b")
# What a template writes around a block marked as `generation` where its places are asked for. No text holds it.
_BEGIN, _END = (f"\0{secrets.token_hex(8)}\0" for _ in range(2))


class ChatTemplate:
    """Render the template of a checkpoint: chat_template.jinja, else that of tokenizer_config.json, else PLAIN.

    Args:
        directory: The checkpoint; None for none.
        settings: The content of tokenizer_config.json.
        special_tokens: The text of bos_token, eos_token and so on. `source` says in words where the template is from.

    Raises:
        TargetError: The template is damaged.
    """

    def __init__(self, directory: Path | None, settings: dict[str, Any], special_tokens: dict[str, str]) -> None:
        self.text, self.source = _find(directory, settings)
        self.is_plain = self.text is PLAIN
        self.special_tokens = special_tokens
        try:
            self._template = _environment().from_string(self.text)
        except Exception as error:  # it may also nest too deeply for Jinja or for Python
            raise TargetError(
                f"the chat template in {directory} ({self.source}) is damaged: {reason(error)}"
            ) from error

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, object],
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> str:
        """Return the prompt for a conversation.

        Args:
            add_generation_prompt: End the prompt with the beginning of the assistant's answer.
            variables: Further variables that the template may read, under any names.

        Raises:
            RequestError: The template refuses the messages, or fails. The error holds the template's own message.
        """
        given = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return _rendered(self._template, {**self.special_tokens, **variables, **given})

    @property
    def marks_answers(self) -> bool:
        """Return whether the template has blocks marked as `generation`: the text that a model is to learn."""
        return _GENERATION.search(self.text) is not None

    def segments(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[tuple[str, bool]]:
        """Return the text of a conversation in pieces, each with whether it lies in a block marked as `generation`.

        Raises:
            RequestError: The template refuses the messages, or fails, or shows half of such a block.
        """
        given = {"messages": messages, "tools": tools, "add_generation_prompt": False}
        parts = re.split(f"({_BEGIN}|{_END})", _rendered(self._marking, {**self.special_tokens, **given}))
        if parts[1::2] != [_BEGIN, _END] * (len(parts) // 4):
            raise RequestError("the model's chat template shows half of a block that it marks as generation")
        return [(text, number % 2 == 1) for number, text in enumerate(parts[::2]) if text]

    @cached_property
    def _marking(self) -> Template:
        """Return the template with marks around what is generated."""
        environment = _environment()
        environment.extend(generation_marks=(_BEGIN, _END))
        return environment.from_string(self.text)


def _rendered(template: Template, variables: Mapping[str, object]) -> str:
    try:
        return template.render(variables)
    except TemplateError as error:
        raise RequestError(f"the model's chat template does not take these messages: {reason(error)}") from error
    except Exception as error:  # a template is a program: any exception is possible, such as a TypeError
        raise RequestError(
            f"the model's chat template fails on these messages: {type(error).__name__}: {reason(error)}"
        ) from error


class _Generation(Extension):
    """Render the content of a {% generation %} block. Templates use it to mark the model's text for training.

    An environment with `generation_marks` has them written around the content.
    """

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = getattr(self.environment, "generation_marks", None)
        if marks is None:
            return body
        begin, end = (nodes.Output([nodes.TemplateData(mark)]).set_lineno(line) for mark in marks)
        return [begin, *body, end]


def _find(directory: Path | None, settings: dict[str, Any]) -> tuple[str, str]:
    path = None if directory is None else directory / FILE
    if path is not None and path.is_file():
        try:
            return path.read_text(encoding="utf-8"), FILE
        except (OSError, UnicodeDecodeError) as error:
            raise TargetError(f"{path} cannot be read: {reason(error)}") from error
    stated = settings.get("chat_template")
    if isinstance(stated, list):  # several templates, each with a name
        named = {one.get("name"): one.get("template") for one in stated if isinstance(one, dict)}
        stated = named.get("default", next(iter(named.values()), None))
    if isinstance(stated, str):
        return stated, "tokenizer_config.json"
    return PLAIN, "whet's plain one, since the checkpoint has none"


class _Unevaluated(CodeGenerator):
    """Generate code that computes nothing at load, when Jinja would compute `'a' * 3000000000` without any limit."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, _Generation]
    )
    environment.code_generator_class = _Unevaluated
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write a value as JSON. Jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
