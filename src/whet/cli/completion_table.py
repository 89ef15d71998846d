"""Writes completion.json: the commands' options as their functions declare them, so that completion imports none.

`python -m whet.cli.completion_table` writes the file; a test holds it against the commands.
"""

import inspect
import json
from argparse import ArgumentParser
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from whet.cli.commands import COMMANDS
from whet.files import write_whole
from whet.measure.fast_import import import_large
from whet.measure.on_busy import OnBusy

FILE = Path(__file__).with_name("completion.json")

_CHOICES = {
    "on_busy": [str(one) for one in OnBusy],
}  # of options that take text


def table() -> dict[str, list[dict[str, Any]]]:
    """Return the parameters of each command, by the command's name.

    Each has `name`, as in Python; `options`, its spellings, empty for an argument; `help`; `is_flag`; and `choices`,
    the values that it takes, empty for any.
    """
    return {command: list(_of_command(command, import_large(module))) for command, (module, _) in COMMANDS.items()}


def text() -> str:
    """Return what the file holds, one parameter a line."""
    commands = (
        f"{json.dumps(command)}: [\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in parameters) + "\n]"
        for command, parameters in table().items()
    )
    return "{\n" + ",\n".join(commands) + "\n}\n"


def _of_command(command: str, module: ModuleType) -> Iterator[dict[str, Any]]:
    for name in ("parser_of", "_parser"):
        if hasattr(module, name):
            yield from _of_parser(getattr(module, name)())
            return
    function = getattr(module, command.replace("-", "_"))
    hints = get_type_hints(function, include_extras=True)
    for name in inspect.signature(function).parameters:
        kind, info = get_args(hints[name])
        if info.hidden:
            continue
        is_option = isinstance(info, OptionInfo)
        yield {
            "name": name,
            "options": _spellings(name, info) if is_option else [],
            "help": info.help or "",
            "is_flag": kind is bool,
            "choices": _CHOICES.get(name) or _choices(kind),
        }


def _spellings(name: str, info: OptionInfo) -> list[str]:
    """Return an option's spellings. Within Annotated, typer takes the first one for a default."""
    given = [*([info.default] if isinstance(info.default, str) else []), *(info.param_decls or ())]
    return given or [f"--{name.replace('_', '-')}"]


def _of_parser(parser: ArgumentParser) -> Iterator[dict[str, Any]]:
    for action in parser._actions:
        if action.dest != "help":
            yield {
                "name": action.dest,
                "options": list(action.option_strings),
                "help": action.help or "",
                "is_flag": action.nargs == 0,
                "choices": [str(choice) for choice in action.choices or _CHOICES.get(action.dest) or ()],
            }


def _choices(kind: Any) -> list[str]:
    """Return the values of an enumeration or a Literal, or of one that may be None; else an empty list."""
    for one in (kind, *get_args(kind)):
        if get_origin(one) is Literal:
            return [str(value) for value in get_args(one)]
        if isinstance(one, type) and issubclass(one, Enum):
            return [str(member.value) for member in one]
    return []


if __name__ == "__main__":
    write_whole(FILE, text())
