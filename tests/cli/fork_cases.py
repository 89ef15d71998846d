"""Run command lines of whet, each in a fork of one fresh process, and say what each printed and imported.

Run as a program: it reads a JSON list of command lines from standard input, and writes a JSON list of answers.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HEAVY = {"torch", "numpy", "scipy", "optuna", "transformers", "torchao", "openvino", "onnxruntime", "sqlalchemy", "av"}


@dataclass(frozen=True)
class Answer:
    """What a command line came to: its exit code, what it printed, and the heavy modules that it imported."""

    code: int
    out: str
    err: str
    heavy: list[str]
    cpu_s: float


def answers(lines: list[list[str]], directory: Path) -> list[Answer]:
    """Return what each command line came to, run in a directory."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-P", __file__],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
        env=environment,
    )
    return [Answer(**found) for found in json.loads(done.stdout)]


def _run(line: list[str]) -> dict[str, object]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as imported:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = _called(line)
            loaded = sorted(HEAVY & {name.partition(".")[0] for name in sys.modules})
            imported.write(json.dumps(loaded).encode())
            imported.flush()
            os._exit(code)
        _, status, used = os.wait4(child, 0)
        for file in (out, err, imported):
            file.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "out": out.read().decode(),
            "err": err.read().decode(),
            "heavy": json.loads(imported.read() or b'["it crashed"]'),
            "cpu_s": used.ru_utime + used.ru_stime,
        }


def _called(line: list[str]) -> int:
    from whet.cli import main

    code: object = 0
    try:
        main(line)
    except SystemExit as left:
        code = left.code
    except BaseException as error:  # noqa: BLE001 - it becomes part of the answer
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 0


def _import_what_all_share() -> None:
    """Import before the forks what every command imports, and parse once, so that each fork takes milliseconds.

    A heavy module that a command's own module imports is then reported by every case.
    """
    import importlib

    import typer.rich_utils

    from whet.cli import COMMANDS
    from whet.cli.limits import limits

    for module, _ in COMMANDS.values():
        importlib.import_module(module)
    app = typer.Typer(add_completion=False)
    app.command()(limits)
    typer.main.get_command(app).make_context("limits", ["--json"])


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _import_what_all_share()
    print(json.dumps([_run(line) for line in json.load(sys.stdin)]))
