"""Run commands whose options are the typed parameters of a function. Only this module imports typer, which is slow."""

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from whet.cli import notices
from whet.cli.examples import lines
from whet.cli.exit_codes import NO_READER, is_unread
from whet.cli.usage import said, takes
from whet.errors import OptionError

_METAVARS: dict[type, str] = {int: "N", float: "NUMBER", Path: "FILE"}  # of other types: TEXT


def run(command: Callable[..., None], name: str, text: str, arguments: Sequence[str]) -> None:
    """Parse the arguments after the command's name, call the command and exit.

    `text` is the help of a command without a docstring.

    Raises:
        OptionError: The arguments cannot be parsed.
    """
    notices.show()
    program = f"whet {name}"
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(
        name=name,
        cls=_Command,
        help=_paragraphs(command.__doc__ or text),
        epilog="\n\n".join(lines(name)),
        context_settings={"help_option_names": ["--help", "-h"]},
    )(_quiet(command))
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name=program, standalone_mode=False)
    except typer.TyperException as error:
        raise OptionError(_message(error, program)) from error
    except typer.Abort:  # typer's word for an input that has ended
        raise OptionError("standard input has ended") from None
    sys.exit(code or 0)


class _Command(TyperCommand):
    """Show options in help as `--port N`, and arguments as TARGET: no types of Python, no braces."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.module = inspect.unwrap(self.callback).__module__ if self.callback else __name__
        for param in self.params:
            _name_value(param)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check names before the values of all parameters are converted, which takes longer than all else here."""
        command = sys.modules[self.module]
        given, too_many, _ = self.make_parser(ctx).parse_args(args=list(args))
        if too_many and not given.get("help"):
            ctx.fail(f"Got unexpected extra arguments ({' '.join(map(str, too_many))})")
        if not any(given.get(option) for option in ("help", *getattr(command, "NO_NAMES_WITH", ()))):
            for name, check in getattr(command, "NAMES", {}).items():
                if given.get(name) not in (None, (), []):
                    check(given[name])
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if isinstance(param, TyperArgument) and not param.hidden]
        return [self.options_metavar or "", *map(_in_usage, arguments)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _absent({"rich.markdown": "Markdown", "rich.traceback": "Traceback"}):
            importlib.import_module("typer.rich_utils")
        super().format_help(ctx, formatter)

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            _name_value(option)
        return option


@contextlib.contextmanager
def _absent(names: Mapping[str, str]) -> Iterator[None]:
    """Let modules that are not loaded yet hold one empty class each. typer imports them for what whet does not show.

    They take a third of the time of a help. Whoever imports them later gets the modules themselves. Only typer keeps
    the empty classes, which it would need for Markdown and tracebacks: whet's commands show neither.
    """
    missing = [module for module in names if module not in sys.modules]
    for module in missing:
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], names[module], type(names[module], (), {}))
    try:
        yield
    finally:
        for module in missing:
            del sys.modules[module]


def _name_value(param: Any) -> None:
    """Set what the help calls a parameter's value: nothing for a flag, a choice's values, else a word for its type."""
    if isinstance(param, TyperArgument):
        param.metavar = param.metavar or param.name.upper()
        param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
    elif isinstance(param, TyperOption) and param.is_flag:
        param.metavar = ""
    elif param.metavar is None:
        choices = param.type_descriptor.choices
        param.metavar = "|".join(map(str, choices)) if choices else _METAVARS.get(_kind(param), "TEXT")


def _in_usage(argument: TyperArgument) -> str:
    """Return an argument as the usage line shows it. Brackets say that it may be left out."""
    name = argument.metavar or argument.name
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _kind(param: Any) -> type:
    """Return the type of a parameter's values: of each value, where it takes several."""
    annotation = param.type_descriptor.annotation
    kind: type = next(iter(get_args(annotation)), annotation)
    return kind


def _near(error: typer.TyperException) -> list[str]:
    """Return the options that are near a misspelt one. The dashes that all of them begin with do not count."""
    given = str(getattr(error, "option_name", "")).lstrip("-")
    possible = getattr(error, "possibilities", None) or ()
    return [option for option in possible if get_close_matches(given, [option.lstrip("-")])]


def _message(error: typer.TyperException, program: str) -> str:
    """Return what was wrong with the arguments in one line, which names the option and what it takes."""
    param: Any = getattr(error, "param", None)
    if not isinstance(error, typer.BadParameter) or param is None:
        return said(error.format_message(), program, _near(error))
    name = max(param.opts, key=len) if isinstance(param, TyperOption) else param.metavar
    found: Any = error.__cause__
    if not hasattr(found, "errors"):  # not from pydantic: nothing was given
        return (
            f"{name} is missing; {program} --help says what it is" if not error.message else f"{name}: {error.message}"
        )
    fault = found.errors()[0]
    if choices := param.type_descriptor.choices:
        return takes(name, _either(list(map(str, choices))), fault["input"])
    kind = {int: "a whole number", float: "a number"}.get(_kind(param))
    if kind is None:
        return f"{name} {fault['input']!r}: {error.message}"
    for bound in ("min", "max"):
        limit = getattr(param.type_descriptor.parameter_info, bound, None)
        if limit is not None:
            kind += f" of {limit} or {'more' if bound == 'min' else 'less'}"
    return takes(name, kind, fault["input"])


def _either(values: Sequence[str]) -> str:
    """Return "a, b or c"."""
    return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))


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
