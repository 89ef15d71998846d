"""Run the command line. It imports only the command that is called, so that `whet --help` starts at once."""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from whet import MEANT, __version__
from whet.cli.commands import COMMANDS, FUNCTIONS
from whet.cli.exit_codes import INTERRUPTED, NO_READER, USAGE_ERROR, is_unread
from whet.errors import WhetError
from whet.measure.fast_import import import_large

_VERSION = ("--version", "-V", "-v", "version")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name, and exit with its code.

    The codes are 0 for success, 1 for a regression, 2 for wrong use, and 3 for an inconclusive result.
    """
    try:
        try:
            _run(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not is_unread():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still held back goes there at the end
        sys.exit(NO_READER)


def _run(arguments: Sequence[str] | None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in (["--install-completion"], ["--show-completion"]) or "_WHET_COMPLETE" in os.environ:
        importlib.import_module("whet.cli.completion").run(given)
        return
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    if given[:1] and given[0] in _VERSION:
        print(f"whet {__version__}")
        return
    if not given or given[0] in ("--help", "-h"):
        print(_help())
        return
    if given[0] not in COMMANDS:
        function = f"; {given[0]} is a function: {FUNCTIONS[given[0]]}" if given[0] in FUNCTIONS else ""
        there_are = f"there are: {', '.join(COMMANDS)}"
        other = [MEANT[given[0]]] if given[0] in MEANT else difflib.get_close_matches(given[0], COMMANDS, n=1)
        close = [] if function else other
        meant = f"did you mean {close[0]}? " if close else ""
        print(f"error: there is no command {given[0]!r}; {meant}{there_are}{function}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    module, text = COMMANDS[given[0]]
    try:
        command = import_large(module)
        if hasattr(command, "main"):
            sys.exit(command.main(given[1:]))
        function = getattr(command, given[0].replace("-", "_"))
        importlib.import_module("whet.cli.typed").run(function, given[0], text, given[1:])
    except WhetError as error:
        if not getattr(error, "is_told", False):  # of several processes, the first one tells
            print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "whet makes PyTorch models fast on the machine at hand, and proves it.",
            "",
            "usage: whet COMMAND [options]",
            "",
            *lines,
            "",
            "whet COMMAND --help says more, with examples. whet --version prints the version.",
            "whet --install-completion completes commands, options and targets in your shell.",
        ]
    )
