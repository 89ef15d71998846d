"""Run docs/tutorial.md, and record what its commands print.

    python benchmarks/tutorial.py

Files and commands of the page are written and run in their order, in a temporary directory. The output of a ```sh
block replaces the ```text block that follows it.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from whet.files import write_whole

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```\n', re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run the page and write the outputs into it."""
    page = PAGE.read_text(encoding="utf-8")
    output = ""

    def replaced(block: re.Match[str]) -> str:
        nonlocal output
        language, title, body = block.groups()
        if title:
            (directory / title).write_text(body, encoding="utf-8")
        elif language == "sh":
            output = _run(body, directory)
        elif language == "text":
            return f"```text\n{output}```\n"
        return block[0]

    with tempfile.TemporaryDirectory(prefix="whet-tutorial-") as name:
        directory = Path(name)
        text = _BLOCK.sub(replaced, page)
    write_whole(PAGE, text)


def _run(commands: str, directory: Path) -> str:
    """Return what a shell prints, on 80 columns.

    An audit that finds something ends with 1, and a tuning run on a busy machine with 3; both are fine here.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "COLUMNS": "80"}
    print(f"$ {commands}", end="", flush=True)
    done = subprocess.run(["sh", "-c", commands], cwd=directory, env=variables, capture_output=True, text=True)
    print(done.stdout + done.stderr, flush=True)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"the command ended with {done.returncode}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


if __name__ == "__main__":
    main()
