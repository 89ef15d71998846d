"""Write the command line of a search, so that a user can type it again."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from whet.measure.on_busy import WAIT_S, OnBusy
from whet.tuner.goal import BUDGET_S, MAX_SLOWDOWN, Goal


def command_line(
    target: str | Sequence[str],
    *,
    objective: str,
    max_drop: float | None,
    max_slowdown: float = MAX_SLOWDOWN,
    allow_batch: bool = False,
    max_memory_bytes: int | None,
    budget_s: float,
    storage: str | None,
    workers: str | None = None,
    exclude: Sequence[str],
    out: Path | None = None,
    resume: bool = False,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float = WAIT_S,
    as_json: bool = False,
    more: Mapping[str, str] | None = None,
) -> str:
    """Return `whet tune TARGET ...` with every option that is not at its default, quoted for a shell.

    The storage is shown without its password. A script comes last, as `-- python train.py`: `target` is its words then.
    `more` are options of its kind alone.
    """
    options: dict[str, object] = {  # with their values; True for those without one, and None or False for the default
        "--objective": objective if objective != Goal.objective else None,
        "--max-drop": max_drop,
        "--max-slowdown": f"{max_slowdown:g}" if max_slowdown != MAX_SLOWDOWN else None,
        "--allow-batch": bool(allow_batch),
        "--budget": f"{budget_s:.12g}s" if budget_s != BUDGET_S else None,
        "--max-memory": max_memory_bytes,
        "--storage": None if storage is None else without_password(storage),
        "--workers": workers,
        "--exclude": ",".join(exclude) if exclude else None,
        "--on-busy": on_busy if on_busy != OnBusy.WAIT else None,
        "--busy-wait": f"{busy_wait_s:.12g}s" if busy_wait_s != WAIT_S else None,
        "--json": bool(as_json),
        **(more or {}),
        "--out": out,
        "--resume": bool(resume),
    }
    words = ["whet", "tune", target] if isinstance(target, str) else ["whet", "tune"]
    for name, value in options.items():
        if value is not None and value is not False:
            words += [name] if value is True else [name, str(value)]
    return shlex.join(words if isinstance(target, str) else [*words, "--", *target])


def without_password(storage: str) -> str:
    """Return a storage's URL without passwords and options, which may hold one; text that is no URL stays as it is."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(storage).set(query={}).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):  # ValueError: the port is no number
        return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", storage)
