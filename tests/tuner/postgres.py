"""A PostgreSQL server of the tests' own, on a free port of this machine, with a password."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PASSWORD = "its-secret"
_PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _programs() -> Path:
    """The directory of initdb and postgres; a test without them is skipped."""
    for place in [*_PLACES, Path(shutil.which("initdb") or "/nowhere/initdb").parent]:
        if (place / "initdb").is_file() and (place / "postgres").is_file():
            return place
    pytest.skip("PostgreSQL is not installed: apt-get install postgresql")


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run a server, and yield the URL of its database, with the password."""
    pytest.importorskip("psycopg")
    programs, user = _programs(), None
    if os.getuid() == 0:  # it refuses to run as root
        user = next((name for name in ("postgres", "nobody") if _is_user(name)), None)
    directory = Path(tempfile.mkdtemp(prefix="whet-postgres-"))
    who = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    (directory / "password").write_text(PASSWORD)
    if user is not None:
        for path in (directory, directory / "password"):
            os.chown(path, pwd.getpwnam(user).pw_uid, -1)
    made = [programs / "initdb", "-D", directory / "data", "-U", "whet", "-A", "scram-sha-256", "--no-sync"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={directory}", "-c", "fsync=off"]
    try:
        subprocess.run(
            [*made, f"--pwfile={directory / 'password'}"], check=True, capture_output=True, cwd=directory, **who
        )
        process = subprocess.Popen(
            [programs / "postgres", "-D", directory / "data", "-p", str(port), *options],
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **who,
        )
        try:
            _wait_for(process, port)
            yield f"postgresql+psycopg://whet:{PASSWORD}@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _is_user(name: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


def _wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=whet password={PASSWORD} dbname=postgres").close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
