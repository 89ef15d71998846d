"""Searches that several processes share, through a real database server and on real nodes of Ray."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import postgres
import psutil
import pytest
import targets
from optuna.trial import TrialState

import whet
from whet.techniques import TABLE
from whet.tuner.members import Presence
from whet.tuner.records import TrialRecord

KEPT = {"channels_last", "fuse_conv_bn", "bf16"}


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture
def processes() -> Iterator[list["subprocess.Popen[str]"]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def search(
    out: Path, *more: str, target: str = f"{targets.HERE}:conv", kept: set[str] = KEPT, budget: str = "10m"
) -> "subprocess.Popen[str]":
    words = ["tune", target, "--budget", budget, "--out", str(out), "--on-busy", "go-on", "--json", *more]
    words += ["--exclude", ",".join(sorted(set(TABLE) - kept))]
    return subprocess.Popen(
        [sys.executable, "-m", "whet", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


class Watched:
    """A database of the test's own on the server, and what lies in it."""

    def __init__(self, server: str, name: str) -> None:
        import psycopg

        with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        self.url = f"{server.rpartition('/')[0]}/{name}"
        self._storage = optuna.storages.RDBStorage(self.url)

    def close(self) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    @property
    def study(self) -> optuna.Study | None:
        names = optuna.get_all_study_names(self._storage)
        return optuna.load_study(storage=self._storage, study_name=names[0]) if names else None

    def running(self, pid: int) -> TrialRecord | None:
        """The trial that a process makes just now."""
        for trial in self.study.get_trials(deepcopy=False) if self.study else ():
            if (
                trial.state == TrialState.RUNNING
                and trial.user_attrs.get("pid") == pid
                and "record" in trial.user_attrs
            ):
                return TrialRecord.model_validate_json(trial.user_attrs["record"])
        return None

    def present(self) -> list[Presence]:
        """Those that take part, or have."""
        entries = self.study.user_attrs.items() if self.study else ()
        return [Presence.model_validate_json(text) for key, text in entries if key.startswith("member ")]


@pytest.fixture
def watched(storage: str) -> Iterator[Callable[[str], Watched]]:
    made: list[Watched] = []

    def make(name: str) -> Watched:
        made.append(Watched(storage, name))
        return made[-1]

    yield make
    for one in made:
        one.close()


def wait_for(what: Callable[[], Any], *alive: "subprocess.Popen[str]", limit_s: float = 800) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < deadline, "too late"
        for process in alive:
            assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    return found


def ended(process: "subprocess.Popen[str]", out: Path) -> tuple[whet.Result, str]:
    """A search's result, and all that it said. No password is in it, nor in any file.

    Whether anything is proved (exit code 0, or else 3) depends on what else runs on the machine.
    """
    said = "\n".join(process.communicate(timeout=1500))
    assert process.returncode in (0, 3), said
    assert postgres.PASSWORD not in said
    for path in out.rglob("*"):
        assert path.is_dir() or postgres.PASSWORD.encode() not in path.read_bytes(), path
    return whet.Result.model_validate_json((out / "result.json").read_text()), said


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_search_that_is_killed_in_a_trial_loses_that_trial_only(
    watched: Callable[[str], Watched], tmp_path: Path, processes: list["subprocess.Popen[str]"]
) -> None:
    database = watched("one_is_killed")
    first, second = (search(tmp_path / name, "--storage", database.url) for name in ("first", "second"))
    processes += [first, second]
    wait_for(lambda: [one.state for one in database.present()] == ["searching"] * 2, first, second)
    lost = wait_for(lambda: database.running(first.pid), first, second)
    first.send_signal(signal.SIGKILL)
    first.wait()
    result, _ = ended(second, tmp_path / "second")
    assert result.finals_on == ""
    numbers = [trial.number for trial in result.trials]
    assert lost.number not in numbers and all(trial.status != "running" for trial in result.trials)
    again = [trial for trial in result.trials if trial.key == lost.key]
    assert len(again) == 1 and again[0].ran_on.startswith(f"process {second.pid} on ")
    kept = {trial.number: trial.state for trial in database.study.get_trials()}
    assert kept[lost.number] == TrialState.FAIL
    assert not (tmp_path / "first" / "result.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_one_search_measures_the_finals_for_both_and_one_that_dies_there_is_replaced(
    watched: Callable[[str], Watched], tmp_path: Path, processes: list["subprocess.Popen[str]"]
) -> None:
    database = watched("finals")
    outs = [tmp_path / str(i) for i in range(3)]
    started = [search(out, "--storage", database.url) for out in outs]
    processes += started
    wait_for(lambda: len(database.present()) == 3, *started)
    measuring = wait_for(lambda: [one for one in database.present() if one.state == "finals"])
    dead = next(i for i, process in enumerate(started) if process.pid == measuring[0].pid)
    started[dead].send_signal(signal.SIGKILL)
    started[dead].wait()
    left = [i for i in range(3) if i != dead]
    found = {i: ended(started[i], outs[i])[0] for i in left}
    measured = [i for i in left if found[i].finals_on == ""]
    assert len(measured) == 1
    other = next(i for i in left if i not in measured)
    assert found[other].finals_on.startswith(f"process {started[measured[0]].pid} on ")
    assert found[other].sentence == found[measured[0]].sentence
    assert found[other].best.model_dump() == found[measured[0]].best.model_dump()
    assert (outs[other] / "recipe.toml").is_file() and (outs[other] / "report.html").is_file()
    assert "whet apply" in found[other].unsaved
    assert len({trial.ran_on for trial in found[other].trials}) >= 2
    assert len({trial.key for trial in found[other].trials}) == len(found[other].trials)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace(postgres.PASSWORD, "wrong-one"), "password authentication failed for user"),
        (lambda url: url.replace("/postgres", "/nowhere"), 'database "nowhere" does not exist'),
        (lambda url: url.replace("+psycopg", "+pg8000"), "psycopg[binary]"),
    ],
)
def test_a_server_that_cannot_be_used_is_said_in_a_line(
    storage: str, tmp_path: Path, change: Callable[[str], str], said: str
) -> None:
    process = search(tmp_path / "out", "--storage", change(storage))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert said in err and "wrong-one" not in out + err and postgres.PASSWORD not in out + err
    assert not (tmp_path / "out").exists()


PORTS = ("metrics_agent_port", "runtime_env_agent_port", "metrics_export_port", "dashboard_agent_listen_port")


def ports() -> dict[str, int]:
    """Free ports for a node's agents; a node waits for 15 s at most until they have chosen theirs."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        return {name: one.getsockname()[1] for name, one in zip(PORTS, found, strict=True)}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of Ray on this computer, without a dashboard."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    lacking = ImportError("left out")  # else each node starts a large agent for the dashboard that is not there
    monkeypatch.setattr("ray._private.utils.get_dashboard_dependency_error", lambda: lacking)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # agents that compile all that they import are late
    found = cluster_utils.Cluster()
    try:
        found.add_node(num_cpus=1, include_dashboard=False, **ports())
        found.add_node(num_cpus=1, **ports())
        yield found
    finally:
        found.shutdown()


def trying(node: Any) -> bool:
    """Whether a node makes a trial just now, by the title that Ray gives its process."""
    (raylet,) = node.all_processes["raylet"]
    with_children = psutil.Process(raylet.process.pid).children(recursive=True)
    return any("NodeWorker.attempt" in " ".join(words(process)) for process in with_children)


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("shared", [False, True], ids=["own study", "database server"])
def test_nodes_of_ray_make_the_trials_and_one_that_is_killed_loses_its_trial_only(
    tmp_path: Path,
    cluster: Any,
    processes: list["subprocess.Popen[str]"],
    shared: bool,
    request: pytest.FixtureRequest,
) -> None:
    more = ["--workers", f"ray={cluster.address}"]
    left = Path(tempfile.gettempdir()) / f"whet-worker-{os.geteuid()}-of-one-that-was-killed"
    left.mkdir()
    left.with_name(f"{left.name}.lock").touch()
    if shared:
        more += ["--storage", request.getfixturevalue("watched")("nodes").url]
    process = search(tmp_path / "out", *more, budget="5m")
    processes.append(process)
    (node,) = cluster.worker_nodes
    wait_for(lambda: trying(node), process)
    cluster.remove_node(node, allow_graceful=False)
    result, said = ended(process, tmp_path / "out")
    assert " is lost (its process or its node has ended); its trial is made again elsewhere" in said
    assert result.trials and all(trial.status in ("done", "rejected") for trial in result.trials)
    assert len({trial.key for trial in result.trials}) == len(result.trials)
    assert all(trial.ran_on.startswith("node ") for trial in result.trials)
    assert result.left_out == [] and result.finals_on == ""
    assert f"--workers ray={cluster.address}" in result.command
    assert not left.exists() and not left.with_name(f"{left.name}.lock").exists()


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_node_without_the_target_is_named(
    tmp_path: Path, cluster: Any, processes: list["subprocess.Popen[str]"]
) -> None:
    """Each process has another view of what FILE.py builds: that of the nodes has other weights."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import os, torch\n"
        "def model():\n"
        "    torch.manual_seed(int('RAY_JOB_ID' in os.environ or 'RAY_RAYLET_PID' in os.environ))\n"
        "    return torch.nn.Linear(4, 4), torch.zeros(1, 4)\n"
    )
    process = search(tmp_path / "out", "--workers", f"ray={cluster.address}", target=f"{file}:model")
    processes.append(process)
    _, err = process.communicate(timeout=400)
    assert process.returncode == 2, err
    assert "no node of the Ray cluster can try recipes: node " in err
    assert "weights are not those that this search was begun with" in err
    assert not (tmp_path / "out").exists()


def said_by(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        from whet.cli import main

        main(["tune", *words])
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits-cnn", "--workers", "dask"], "--workers takes ray, or ray=HOST:PORT for a cluster's head; got 'dask'"),
        (["digits-cnn", "--workers", "ray="], "--workers takes ray, or ray=HOST:PORT for a cluster's head"),
        (
            ["signs-stream", "--workers", "ray"],
            "--workers goes with a model or a training, and signs-stream is a stream",
        ),
        (["--workers", "ray", "--", "python", "train.py"], "start whet tune --storage URL on each machine instead"),
    ],
)
def test_workers_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert said in said_by(capsys, *words)


def test_without_ray_its_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    out = tmp_path / "out"
    said = said_by(capsys, "digits-cnn", "--workers", "ray", "--out", str(out))
    assert "whet tune --workers ray needs ray[serve], which is not installed: pip install" in said
    assert not out.exists()


def test_a_server_that_does_not_answer_is_said_without_the_password(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("psycopg")
    for storage, why in {
        "postgresql+psycopg://me:its-secret@127.0.0.1:9/whet": "onnection refused",
        "postgresql+psycopg://me:its-secret@127.0.0.1:port/whet": "its port is no number",
        "postgresql+nodriver://me:its-secret@127.0.0.1/whet": "nodriver",
    }.items():
        said = said_by(capsys, "digits-cnn", "--storage", storage, "--out", str(tmp_path / "out"))
        assert why in said and "cannot be used" in said
        assert "its-secret" not in said
