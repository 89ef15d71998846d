"""Write the command line of a search, so that a user can type it again."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError


def command_line(
    target: str,
    *,
    objective: str,
    max_drop: float,
    max_memory_bytes: int | None,
    budget_s: float,
    storage: str | None,
    exclude: Sequence[str],
    out: Path | None = None,
    resume: bool = False,
) -> str:
    """Return `whet tune TARGET ...` with every option that tells one search from another, quoted for a shell."""
    words = [
        "whet",
        "tune",
        target,
        "--objective",
        objective,
        "--max-drop",
        str(max_drop),
        "--budget",
        f"{budget_s:.12g}s",
    ]
    if max_memory_bytes is not None:
        words += ["--max-memory", str(max_memory_bytes)]
    if storage is not None:
        words += ["--storage", storage]
    if exclude:
        words += ["--exclude", ",".join(exclude)]
    if out is not None:
        words += ["--out", str(out)]
    return shlex.join([*words, "--resume"] if resume else words)


def without_password(storage: str) -> str:
    """Return a storage's URL without passwords, so that it can be shown. A text that is no URL stays as it is.

    The URL's options may hold a password too, so they are left out.
    """
    try:
        return make_url(storage).set(query={}).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):  # ValueError: the port is no number
        return storage
