"""Let whet's child processes be forks of one process that has imported torch, and let each of them measure shortly.

Most of the time of a short measurement goes into imports. `whet.doctor` looks packages up and does not import them.
This is for tests in which the figures do not matter. That child processes start by themselves is tested where it is the
point: in tests/measure, tests/comparison, and by one run of each command.
"""

import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pytest

from whet.installation import packages
from whet.measure import isolate, load
from whet.measure.child import ending_with_parent, main
from whet.measure.fast_import import import_large
from whet.measure.fork_server import ForkedChild

ADDRESS = "WHET_TESTS_CHILDREN"  # the environment variable with the server's socket
TIMED_S = 0.05  # the most seconds of timing in each process, where no figure matters
PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.export._trace",
    "whet.tuner.target_examination",
    "whet.tuner.trial",
    "whet.tuner.variant_process",
    "whet.comparison.child",
    "transformers.modeling_utils",
)
_MESSAGE_BYTES = 2**18
_FREE = 500  # a file descriptor from which on none is in use


class NoServer:
    """Stand in for whet's own fork server: its children are then started as all others are."""

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def renew(self) -> None:
        pass

    def start(self, function: str, directory: Path, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        return None


class _Child(ForkedChild):
    """Close the connection once the child has ended."""

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        self._wire.close()
        return code


def use(patch: pytest.MonkeyPatch, *, timed_s: float = TIMED_S) -> None:
    """Start whet's child processes in this process as forks of the server that the environment names.

    Args:
        patch: Undoes it.
        timed_s: The most seconds of timing in each child.
    """
    patch.setattr(isolate, "_start", partial(_start, timed_s=timed_s))
    patch.setattr("whet.tuner.processes.ForkServer", NoServer)
    looked_up = packages._CHILD.replace("importlib.import_module(name)", "importlib.util.find_spec(name)")
    assert looked_up != packages._CHILD
    patch.setattr(packages, "_CHILD", f"import importlib.util\n{looked_up}")


@contextmanager
def server() -> Iterator[None]:
    """Run the server, and name it in the environment."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        address = f"{directory}/socket"
        patch.setenv(ADDRESS, address)
        command = [sys.executable, "-P", __file__, address]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()
            process.communicate()


def _start(address: str, directory: Path, job: isolate.Job, *, timed_s: float) -> _Child:
    """Start a child as whet.measure.isolate does."""
    request = {
        "function": address,
        "directory": str(directory.absolute()),
        "environment": {**os.environ, **load.environment(), **job.environment},
        "working_directory": str(job.working_directory or Path.cwd()),
        "inherit": list(job.inherit),
        "timed_s": timed_s,
    }
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wire.connect(os.environ[ADDRESS])
    socket.send_fds(wire, [json.dumps(request).encode()], list(job.inherit))
    return _Child(int(wire.recv(_MESSAGE_BYTES)), wire)


def _serve(address: str) -> None:
    """Fork for each connection. Return in no process."""
    ending_with_parent(signal.SIGKILL)()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    for name in PRELOAD:
        if importlib.util.find_spec(name.partition(".")[0]):
            import_large(name)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for the children
    while True:
        wire, _ = listener.accept()
        with wire:
            if os.fork() == 0:
                listener.close()
                _mind(wire)


def _mind(wire: socket.socket) -> None:
    """Start one child, and say how it ends. End with whoever asked for it; the child then ends too."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, descriptors, _, _ = socket.recv_fds(wire, _MESSAGE_BYTES, 16)
    if not message:
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        wire.close()
        _become(json.loads(message), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    wire.send(str(pid).encode())
    ended = os.pidfd_open(pid)
    if ended in select.select([ended, wire], [], [])[0]:
        wire.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)


def _become(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Be what `python -P -m whet.measure.child FUNCTION DIRECTORY` is. Never return."""
    try:
        os.setsid()
        high = [os.dup2(descriptor, _FREE + index) for index, descriptor in enumerate(descriptors)]
        for descriptor, wanted in zip(high, request["inherit"], strict=True):
            os.dup2(descriptor, wanted)
            os.close(descriptor)
        os.dup2(os.open(Path(request["directory"]) / isolate.LOG, os.O_WRONLY | os.O_APPEND), 1)
        os.dup2(1, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(request["working_directory"])
        own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ.clear()
        os.environ.update(request["environment"])
        theirs = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [place for place in theirs if place and place not in own]
        _shorten(Path(request["directory"]) / isolate.ARGUMENTS, request["timed_s"])
        main(request["function"], request["directory"])
    except BaseException:  # noqa: BLE001 - nothing may unwind into the server's loop
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


def _shorten(path: Path, timed_s: float) -> None:
    """Let a child's arguments ask for no more than `timed_s` seconds of timing."""
    arguments = json.loads(path.read_text(encoding="utf-8"))
    for asked in (arguments, *(value for value in arguments.values() if isinstance(value, dict))):
        if "budget_s" in asked:
            asked["budget_s"] = min(asked["budget_s"], timed_s)
    path.write_text(json.dumps(arguments), encoding="utf-8")


if __name__ == "__main__":
    _serve(sys.argv[1])
