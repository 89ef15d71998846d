"""Commands whose options are the typed parameters of a function. Apart, since typer takes a while to import."""

from collections.abc import Callable, Sequence

import typer


def run(command: Callable[..., None], name: str, text: str, arguments: Sequence[str]) -> None:
    """Parse the arguments, call the command and exit. text: help for a command without a docstring."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name=name, help=command.__doc__ or text)(command)
    app(list(arguments), prog_name=f"whet {name}")
