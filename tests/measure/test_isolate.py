"""Every way for a child process to end, and that nothing it started lives on: a fresh process, and a fork."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import targets_for_isolate

from whet.measure import fork_server, isolate
from whet.measure.fork_server import ForkServer
from whet.measure.group import run_together
from whet.measure.isolate import (
    ARGUMENTS,
    LOG,
    RESULT,
    FailureKind,
    Job,
    Outcome,
    address_of,
    run_isolated,
)

HERE = Path(__file__).parent
PATH = {"PYTHONPATH": str(HERE)}

Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(["whet.measure.isolate"], PATH) as server:
        yield server


@pytest.fixture(params=["fresh", "fork"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(tmp_path: Path, kind: str, server: ForkServer) -> Run:
    def isolated(function: str, *, time_limit_s: float = 120, memory: int | None = None, **arguments: Any) -> Outcome:
        return run_isolated(
            getattr(targets_for_isolate, function),
            arguments,
            tmp_path / "exchange",
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory,
            environment=PATH,
            start=server.start if kind == "fork" else None,
        )

    return isolated


def failure_of(outcome: Outcome) -> tuple[FailureKind, str]:
    assert outcome.value is None
    assert outcome.failure is not None
    return outcome.failure.kind, outcome.failure.message


def is_gone(pid: int, within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True  # killed, and nobody has asked for its exit code yet
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def read_pids(path: Path, within_s: float = 60) -> list[int]:
    deadline = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(word) for word in path.read_text().split()]


def test_a_value_comes_back_from_another_process(run: Run, tmp_path: Path) -> None:
    outcome = run("add", a=1.5, b=2)
    assert outcome.failure is None
    assert outcome.value is not None
    assert outcome.value["sum"] == 3.5
    assert outcome.value["pid"] != os.getpid()
    assert outcome.seconds > 0
    assert outcome.peak_rss_bytes > 2**20
    assert outcome.value["path"] == str(HERE)
    assert json.loads((tmp_path / "exchange" / ARGUMENTS).read_text()) == {"a": 1.5, "b": 2}
    assert (tmp_path / "exchange" / LOG).read_text() == "adding\n"  # and no warning of whet's own making

    # An old result is not taken for a new one.
    assert failure_of(run("leave", code=0))[0] is FailureKind.CRASH


def test_a_user_error_keeps_its_type_and_message(run: Run) -> None:
    outcome = run("user_error")
    assert failure_of(outcome) == (FailureKind.USER, "the batch is upside down; turn it")
    assert outcome.failure is not None
    assert outcome.failure.type == "InputsError"


def test_sigkill_is_a_crash_that_is_named(run: Run) -> None:
    kind, message = failure_of(run("kill_self"))
    assert kind is FailureKind.CRASH
    assert "SIGKILL" in message
    assert "last words" in message


def test_a_segmentation_fault_is_a_crash(run: Run) -> None:
    kind, message = failure_of(run("read_null"))
    assert kind is FailureKind.CRASH
    assert "SIGSEGV" in message


def test_leaving_without_a_result_is_a_crash(run: Run) -> None:
    outcome = run("leave", code=3)
    assert failure_of(outcome) == (FailureKind.CRASH, "the process ended with exit code 3 and gave no result")


def test_a_hang_ends_at_the_limit_with_all_it_started(run: Run, kind: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    limit_s = 6 if kind == "fork" else 8  # what it starts has to be there by then, on a busy machine as well
    outcome = run("hang", time_limit_s=limit_s, pids=str(pids))
    assert failure_of(outcome) == (FailureKind.TIMEOUT, f"took longer than its limit of {limit_s} s")
    assert limit_s <= outcome.seconds < limit_s + 12
    assert len(read_pids(pids)) == 3
    assert all(map(is_gone, read_pids(pids)))


def test_what_a_child_leaves_behind_is_ended(run: Run) -> None:
    outcome = run("leave_a_process_behind")
    assert outcome.value is not None
    assert is_gone(outcome.value["pid"])


def test_what_lies_in_the_working_directory_is_not_imported(tmp_path: Path) -> None:
    """It may be a model that was downloaded; whet does not run what comes with it."""
    for name in ("psutil", "json", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this ran')")
    function, exchange = targets_for_isolate.add, tmp_path / "exchange"
    outcome = run_isolated(
        function, {"a": 1, "b": 2}, exchange, time_limit_s=60, environment=PATH, working_directory=tmp_path
    )
    assert outcome.failure is None


def test_memory_that_forks_share_counts_once(run: Run) -> None:
    outcome = run("share_memory", memory=1024 * 2**20, megabytes=300, workers=6)
    assert outcome.failure is None
    assert outcome.peak_rss_bytes > 1024 * 2**20, "the test says nothing"


def test_more_memory_than_the_limit_is_a_failure_of_memory(run: Run) -> None:
    outcome = run("hold_memory", memory=1024 * 2**20, megabytes=1200)
    assert failure_of(outcome) == (FailureKind.MEMORY, "used more memory than its limit of 1,024 MiB")
    assert outcome.peak_rss_bytes > 1024 * 2**20
    assert outcome.seconds < 60


@pytest.mark.parametrize(
    "text",
    ["", "{", "5", "[]", "\0", '{"value": 5}', '{"kind": "odd", "message": "", "type": ""}', '{"kind": "error"}'],
)
def test_garbage_in_the_result_file_is_a_crash(tmp_path: Path, text: str) -> None:
    (tmp_path / RESULT).write_text(text)
    (tmp_path / LOG).write_text("")
    value, failure = isolate._read_result(tmp_path, 0, None, 1, None)
    assert value is None
    assert failure is not None
    assert failure.kind is FailureKind.CRASH
    assert "gave no result" in failure.message


def test_the_end_of_a_long_log_is_told(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(b"x" * 1_000_000 + "é\nthe last line\n".encode())
    assert isolate._crash_message(tmp_path, 4) == "the process ended with exit code 4 and gave no result: the last line"


def test_signals_are_named_where_they_have_a_name(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("")
    nameless = signal.SIGRTMIN + 1
    assert isolate._crash_message(tmp_path, -signal.SIGABRT) == "the process was ended by SIGABRT"
    assert isolate._crash_message(tmp_path, -nameless) == f"the process was ended by signal {nameless}"


PARENT = """
import sys
from pathlib import Path
import targets_for_isolate
from whet.measure.fork_server import ForkServer
from whet.measure.isolate import run_isolated
start = ForkServer([], {}).start if sys.argv[3] == "fork" else None
try:
    run_isolated(targets_for_isolate.hang, {"pids": sys.argv[1]}, Path(sys.argv[2]), time_limit_s=300, start=start)
except KeyboardInterrupt:
    sys.exit(42)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 42), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_child_ends_with_its_parent(tmp_path: Path, kind: str, number: int, code: int) -> None:
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", PARENT, str(pids), str(tmp_path / "exchange"), kind]
    parent = subprocess.Popen(command, env={**os.environ, **PATH})
    child, *sleepers = read_pids(pids)
    try:
        parent.send_signal(number)
        assert parent.wait(30) == code
        if number == signal.SIGINT:
            assert all(map(is_gone, [child, *sleepers]))
        elif sys.platform == "linux":  # nobody is left to look for grandchildren; the kernel ends the child itself
            assert is_gone(child)
    finally:
        for pid in [child, *sleepers]:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()


def test_forks_share_the_process_that_made_them_and_what_it_imported(run: Run, kind: str) -> None:
    first, second = run("ancestry").value, run("ancestry").value
    assert first is not None and second is not None
    assert first["pid"] != second["pid"]
    assert first["session"] == first["pid"]  # its own: what it starts can be ended with it
    assert first["random"] != second["random"]
    if kind == "fork":
        assert first["parent"] == second["parent"] != os.getpid()
        assert second["num_children"] == 1  # the first was waited for
    else:
        assert first["parent"] == os.getpid()


def test_a_renewed_server_is_another_process(tmp_path: Path) -> None:
    with ForkServer([], PATH) as server:
        parents = list[int]()
        for renews in (False, False, True):
            if renews:
                server.renew()
            outcome = run_isolated(targets_for_isolate.ancestry, {}, tmp_path, time_limit_s=60, start=server.start)
            assert outcome.value is not None
            parents.append(outcome.value["parent"])
    assert parents[0] == parents[1] != parents[2]
    assert is_gone(parents[0])


def test_where_no_other_server_can_be_made_children_start_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    with ForkServer([], PATH) as server:
        monkeypatch.setattr(fork_server.subprocess, "Popen", no_process)
        server.renew()
        monkeypatch.undo()
        assert server.start(address_of(targets_for_isolate.ancestry), tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell nothing of pages of libraries")
def test_what_a_fork_takes_are_no_pages_of_libraries(tmp_path: Path) -> None:
    """A fork maps the libraries of its parent anew as it runs."""
    with ForkServer(["targets_for_isolate"], PATH) as server:
        given = {"megabytes": 96}
        outcome = run_isolated(targets_for_isolate.taken, given, tmp_path, time_limit_s=60, start=server.start)
    assert outcome.value is not None
    assert 94 <= outcome.value["taken"] / 2**20 <= 98
    assert outcome.value["resident"] > outcome.value["taken"]


def test_where_a_server_has_ended_a_fresh_process_does_it(tmp_path: Path) -> None:
    server = ForkServer(["no_such_module"], PATH)
    for _ in range(2):  # as it ends, and after its end
        outcome = run_isolated(
            targets_for_isolate.ancestry, {}, tmp_path, time_limit_s=60, environment=PATH, start=server.start
        )
        assert outcome.value is not None
        assert outcome.value["parent"] == os.getpid()
    server.close()
    server.close()


def test_a_server_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_START_S", 0.0)
    with ForkServer(["torch"], PATH) as server:
        assert server.start(address_of(targets_for_isolate.ancestry), tmp_path) is None
        monkeypatch.undo()
        assert server.start(address_of(targets_for_isolate.ancestry), tmp_path) is None


def test_a_server_that_is_closed_leaves_no_process(tmp_path: Path) -> None:
    server = ForkServer([], PATH)
    outcome = run_isolated(targets_for_isolate.ancestry, {}, tmp_path, time_limit_s=60, start=server.start)
    assert outcome.value is not None
    server.close()
    assert is_gone(outcome.value["parent"])


def jobs(directory: Path, function: Callable[..., dict[str, Any]], *arguments: dict[str, Any]) -> list[Job]:
    return [Job(function, given, directory / str(rank), PATH) for rank, given in enumerate(arguments)]


def test_processes_of_a_group_meet(tmp_path: Path) -> None:
    outcomes = run_together(
        jobs(tmp_path, targets_for_isolate.sum_over_ranks, {"value": 2}, {"value": 5}), time_limit_s=120
    )
    assert [outcome.value for outcome in outcomes] == [{"rank": 0, "sum": 7}, {"rank": 1, "sum": 7}]


@pytest.mark.parametrize("broken", [0, 1])
def test_the_first_failure_ends_all(tmp_path: Path, broken: int) -> None:
    given = [{"pids": str(tmp_path / f"pids-{rank}"), "fails": rank == broken} for rank in range(2)]
    began = time.monotonic()
    outcomes = run_together(jobs(tmp_path, targets_for_isolate.hang_or_fail, *given), time_limit_s=300)
    assert time.monotonic() - began < 60
    failures = [outcome.failure for outcome in outcomes]
    assert all(failures)
    kinds = [failure.kind for failure in failures if failure is not None]
    assert kinds[broken] is FailureKind.USER
    assert kinds[1 - broken] is FailureKind.PEER
    started = tmp_path / f"pids-{1 - broken}"
    assert not started.exists() or all(map(is_gone, read_pids(started)))


def test_only_functions_of_modules_have_an_address() -> None:
    assert address_of(targets_for_isolate.add) == "targets_for_isolate:add"
    for function in (lambda: {}, "text".upper, Path.exists):
        with pytest.raises((ValueError, AttributeError, TypeError)):
            address_of(function)
