"""The results of the check on a GPU: one run for each group, date and commit, in docs/results/gpu.json.

A run replaces the one of the same group, date and commit; others stay. So a machine that is there for some minutes only
checks some groups, and the next one others.
"""

import datetime
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "gpu.json"

Run = Mapping[str, Any]


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the runs of a file, the oldest first; none where there is no file."""
    if not path.is_file():
        return []
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return runs


def key_of(run: Run) -> tuple[str, str, str]:
    """Return what tells a run from others: group, date and commit."""
    return run["group"], run["written_at"][:10], run["commit"]


def merged(runs: Sequence[Run], new: Run) -> list[Run]:
    """Return the runs, the oldest first, with a new one instead of that of the same group, date and commit."""
    kept = [run for run in runs if key_of(run) != key_of(new)]
    return sorted([*kept, new], key=lambda run: run["written_at"])


def newest(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the newest run of each group, the group that was run longest ago first."""
    found: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run["written_at"]):
        found.pop(run["group"], None)
        found[run["group"]] = run
    return found


def save(paths: Sequence[Path], run: Run) -> None:
    """Merge a run into each file. A file that is not there yet begins with the runs of docs/results/gpu.json."""
    from whet.files import write_whole

    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        runs = merged(read(path if path.is_file() else RESULTS), run)
        write_whole(path, json.dumps({"runs": runs}, indent=1) + "\n")


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str:
    """Return the short name of the checkout's commit, with "+" where files have changed since; "" without git."""
    try:
        name = _git("rev-parse", "--short=8", "HEAD")
        return name + "+" * bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
