"""Processes that cannot train together say so at the start: other versions, and a port that is taken."""

import contextlib
import importlib
import io
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from many import Group
from rank_runs import written

from whet import __version__

ENDS_S = 30


@pytest.fixture
def port() -> Iterator[tuple[int, socket.socket]]:
    """A port, and the socket that listens on it until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1]), server


def called(file: str, port: int, claims: dict[int, tuple[str, str]]) -> dict[str, Any]:
    """Call `whet train`, where the first process holds the store, and return its exit code and what it printed.

    Args:
        claims: The module whose version some processes claim, and the version, by rank.
    """
    from whet.cli import main

    for name in ("whet.parallel.joining", "whet.trainer.train"):  # what imports take is not timed
        importlib.import_module(name)
    os.environ["WHET_RENDEZVOUS"] = f"tcp://127.0.0.1:{port}"
    if (claim := claims.get(int(os.environ["WHET_RANK"]))) is not None:
        sys.modules[claim[0]].__version__ = claim[1]  # type: ignore[attr-defined]
    said, began, code = io.StringIO(), time.monotonic(), None
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(["train", file])
        except SystemExit as end:
            code = end.code
    return {"code": code, "said": said.getvalue(), "seconds": time.monotonic() - began}


@pytest.mark.parametrize(
    ("module", "name", "odd"), [("torch", "torch", 1), ("whet.parallel.joining", "whet", 2), ("torch", "torch", 0)]
)
def test_another_version_on_one_process_is_refused_with_one_message(
    tmp_path: Path, port: tuple[int, socket.socket], module: str, name: str, odd: int
) -> None:
    number, server = port
    server.close()
    with Group(called, 3, str(written(tmp_path, "mixed")), number, {odd: (module, "0.0.7")}) as group:
        answers = group.answers()
    assert [fault for fault, _ in answers] == ["", "", ""]
    found = [one for _, one in answers]
    assert [one["code"] for one in found] == [2, 2, 2]
    assert all(one["seconds"] < ENDS_S for one in found)
    known = torch.__version__ if name == "torch" else __version__
    first, other = ("0.0.7", known) if odd == 0 else (known, "0.0.7")
    [line] = found[0]["said"].splitlines()
    assert line.startswith(f"error: rank 0 has {name} {first}, and rank {odd or 1} {other}; install the same versions")
    assert [one["said"] for one in found[1:]] == ["", ""]
    assert not (tmp_path / "mixed").exists()


def test_a_port_that_is_taken_is_named(tmp_path: Path, port: tuple[int, socket.socket]) -> None:
    """The other process learns that nobody answers there, and says so too."""
    number, _ = port
    file = written(tmp_path, "taken", parallel={"timeout_s": 5.0})
    with Group(called, 2, str(file), number, {}) as group:
        answers = group.answers()
    for fault, one in answers:
        assert not fault and one["code"] == 2 and one["seconds"] < ENDS_S, (fault, one)
        [line] = one["said"].splitlines()
        assert line.startswith(f"error: the 2 processes cannot meet at tcp://127.0.0.1:{number}: ")
        assert "choose a free port with torchrun --master-port" in line
