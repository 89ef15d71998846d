"""Complete words in bash, zsh, fish and PowerShell by typer's protocol, without importing a command or torch.

The options come from completion.json (see completion_table.py), the values from the file system and from names.
"""

import ast
import contextlib
import inspect
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.commands import COMMANDS
from whet.techniques.names import technique_names, training_technique_names
from whet.workloads import BUILTIN, BUILTIN_STREAMS, BUILTIN_TRAINING
from whet.workloads.model_directory import BUILT_IN

VARIABLE = "_WHET_COMPLETE"  # environment variable: what the shell asks for
_TABLE = Path(__file__).with_name("completion.json")

Values = Callable[[str], Iterator[str]]


def run(arguments: list[str]) -> None:
    """Answer a shell, or do what `--install-completion` and `--show-completion` say, and exit.

    Raises:
        SystemExit: Always, at the end.
    """
    if VARIABLE in os.environ:
        os.environ["COLUMNS"] = "1000"  # typer would break a long help into lines, and a shell takes each for a value
    if os.environ.get(VARIABLE) != "complete_bash":
        _app()(arguments, prog_name="whet")
        return
    cut = join_at_colons(os.environ)
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            _app()(arguments, prog_name="whet")
    finally:
        print("\n".join(line.removeprefix(cut) for line in output.getvalue().splitlines()))


def join_at_colons(environment: MutableMapping[str, str]) -> str:
    """Put together in COMP_WORDS what bash has split at colons, and return the beginning that it will not replace.

    For `hf:mod`, bash gives the words "hf", ":" and "mod", and replaces "mod" alone. COMP_CWORD is changed too.
    """
    given = environment["COMP_WORDS"].split("\n")[: int(environment["COMP_CWORD"]) + 1]
    words: list[str] = []
    for word in given:
        if words and (word == ":" or words[-1].endswith(":")):
            words[-1] += word
        else:
            words.append(word)
    environment["COMP_WORDS"] = "\n".join(words)
    environment["COMP_CWORD"] = str(len(words) - 1)
    return words[-1][: words[-1].rfind(":") + 1] if words else ""


def targets(incomplete: str, names: tuple[str, ...] = (*BUILTIN, *BUILTIN_TRAINING)) -> Iterator[str]:
    """Yield built-in workloads, "hf:" and directories after it, Python files, and functions after a file's colon."""
    if incomplete.startswith("hf:"):
        yield from (f"hf:{path}" for path in _paths(incomplete.removeprefix("hf:"), suffix=None))
        return
    file, colon, _ = incomplete.rpartition(":")
    if colon:
        yield from (f"{file}:{name}" for name in _functions(Path(file)))
        return
    yield from names
    yield "hf:"
    yield from (path if path.endswith("/") else f"{path}:" for path in _paths(incomplete, suffix=".py"))


def streams(incomplete: str) -> Iterator[str]:
    """Yield built-in streams, directories, Python files, and functions after a file's colon."""
    if ":" not in incomplete:
        yield from BUILTIN_STREAMS
    yield from (value for value in targets(incomplete, ()) if not value.startswith("hf:"))


def models(incomplete: str) -> Iterator[str]:
    """Yield built-in language models, and directories."""
    yield from BUILT_IN
    yield from _paths(incomplete, suffix=None)


def techniques(incomplete: str) -> Iterator[str]:
    """Yield lists of techniques that end in one more; each technique is a file."""
    before = incomplete[: incomplete.rfind(",") + 1]
    named = before.split(",")
    for name in sorted({*technique_names(), *training_technique_names()}):
        if name not in named:
            yield before + name


_VALUES: dict[str, Values] = {
    "target": targets,
    "targets": targets,
    "model": models,
    "draft": models,
    "exclude": techniques,
}  # by the name of the parameter
_VALUES_OF: dict[str, dict[str, Values]] = {
    "tune": {"targets": partial(targets, names=(*BUILTIN, *BUILTIN_TRAINING, *BUILTIN_STREAMS))},
    "stream": {"target": streams},
}  # of single commands, instead of those


def _app() -> typer.Typer:
    """Return all commands with their options, as empty functions."""
    app = typer.Typer(pretty_exceptions_enable=False)
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    for command, (_, text) in COMMANDS.items():
        values = _VALUES | _VALUES_OF.get(command, {})
        app.command(name=command, help=text)(_function(table.get(command, []), values))
    return app


def _function(parameters: list[dict[str, Any]], values: Mapping[str, Values]) -> Callable[..., None]:
    """Return a function that does nothing, with the parameters that typer is to complete."""

    def nothing(**_: Any) -> None:
        return

    made = [_parameter(values.get(parameter["name"]), **parameter) for parameter in parameters]
    nothing.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    nothing.__annotations__ = {parameter.name: parameter.annotation for parameter in made}
    return nothing


def _parameter(
    values: Values | None, name: str, options: list[str], help: str, is_flag: bool, choices: list[str]
) -> inspect.Parameter:
    def completed(incomplete: str) -> list[str]:
        return list(values(incomplete)) if values is not None else choices

    if options and is_flag:
        kind: Any = Annotated[bool, typer.Option(*options, help=help)]
    elif options:
        kind = Annotated[list[str] | None, typer.Option(*options, help=help, autocompletion=completed)]
    else:
        kind = Annotated[list[str] | None, typer.Argument(autocompletion=completed)]
    default = False if is_flag else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _paths(beginning: str, *, suffix: str | None) -> Iterator[str]:
    """Yield the directories, with a slash, and the files of a suffix that a path may go on to."""
    directory, _, name = beginning.rpartition("/")
    place = Path(f"{directory}/" if directory or beginning.startswith("/") else ".").expanduser()
    with contextlib.suppress(OSError):
        for path in sorted(place.iterdir()):
            if path.name.startswith(".") and not name.startswith("."):
                continue
            prefix = f"{directory}/" if "/" in beginning else ""
            if path.is_dir() and path.name != "__pycache__":
                yield f"{prefix}{path.name}/"
            elif suffix is not None and path.suffix == suffix:
                yield prefix + path.name


def _functions(file: Path) -> Iterator[str]:
    """Yield the names of the public functions of a file, which is not run."""
    try:
        tree = ast.parse(file.expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name
