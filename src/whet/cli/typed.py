"""Run commands whose options are the typed parameters of a function. Only this module imports typer, which is slow."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import typer

from whet.cli import NO_READER, is_unread


def run(command: Callable[..., None], name: str, text: str, arguments: Sequence[str]) -> None:
    """Parse the arguments, call the command and exit.

    Args:
        command: The function.
        name: The command's name.
        text: The help of a command without a docstring.
        arguments: The arguments after the command's name.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name=name, help=_paragraphs(command.__doc__ or text))(_quiet(command))
    app(list(arguments), prog_name=f"whet {name}")


def _paragraphs(text: str) -> str:
    """Return a docstring with one line for each paragraph, so that the terminal's width decides where lines break."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def _quiet(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that it ends like any other program if nobody reads its output. typer would exit with 1."""

    @functools.wraps(command)
    def called(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except BrokenPipeError:
            if not is_unread():
                raise
            raise typer.Exit(NO_READER) from None

    return called
