"""Run the command line. It imports only the command that is called, so that `whet --help` starts at once."""

import difflib
import importlib
import os
import select
import sys
from collections.abc import Sequence

from whet import MEANT, __version__
from whet.errors import WhetError
from whet.fast_import import import_large

# command -> (module, one line of help); each module has a function of the command's name (with _ for -), for typer, or
# a function `main` that takes the arguments and returns the exit code: typer takes longer to start than a small audit
COMMANDS = {
    "tune": ("whet.cli.tune", "Find the fastest recipe for a model or a training run here, and prove it."),
    "run": ("whet.cli.run", "Run a training script with a recipe applied to its loop, unchanged."),
    "train": ("whet.cli.train", "Train a language model from a configuration, with what whet tune found."),
    "apply": ("whet.cli.apply", "Replay a recipe on a target and save the result."),
    "bench": ("whet.cli.bench", "Measure a target at many sizes, and fail if it has become slower."),
    "profile": ("whet.cli.profile", "Say what bounds a model, how far it is from the limit, and what would help."),
    "audit": ("whet.cli.audit", "Find what makes PyTorch code slow, say what it may cost, and fix it."),
    "techniques": ("whet.cli.techniques", "List the techniques, what each does, and which can run on this machine."),
    "doctor": ("whet.cli.doctor", "Say what is installed, what works, and what is missing for which command."),
    "limits": ("whet.cli.limits", "Measure what this machine can do at best."),
    "serve": ("whet.cli.serve", "Serve language models, and what whet tune saved, over HTTP."),
    "bench-serve": ("whet.cli.bench_serve", "Put a server under load: latencies, throughput and goodput of its users."),
    "stream": ("whet.cli.stream", "Turn frames into frames in real time, within a budget, and report it."),
    "chat": ("whet.cli.chat", "Talk to a model in the terminal."),
    "monitor": ("whet.cli.monitor", "Watch a command as it runs: live page, Prometheus metrics, summary."),
}

# functions of whet that have no command, and what a user who looks for one is told
FUNCTIONS = {
    "compare": "whet.compare(old, new); see docs/compare.md",
    "load": "whet.load(directory); see docs/tune.md",
    "watch": "whet.watch(model, optimizer, loader); see docs/watch.md",
}

_VERSION = ("--version", "-V", "-v", "version")
USAGE_ERROR = 2
INTERRUPTED = 130
NO_READER = 141  # 128 and SIGPIPE, as of any command whose reader has left


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


def is_unread() -> bool:
    """Return whether the reader of standard output has closed it, as `head` does."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


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
