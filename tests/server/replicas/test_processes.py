"""Real replicas of a real model: killed, replaced and ended under load."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from replicated_process import Load, Served, kill, served, wait_for
from small_programs import save, small

import whet
from refusals import refusal
from whet.measure.cores import allowed_cores

pytestmark = pytest.mark.skipif(len(allowed_cores()) < 2, reason="two replicas need two cores")
OPTIONS = ("--dtype", "fp32", "--max-num-seqs", "16", "--memory", "64MiB")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("docs-gpt", "--replicas", "2", *OPTIONS) as server:
        yield server


def test_it_says_where_it_is_and_each_replica_has_its_cores(server: Served) -> None:
    assert server.told["pid"] == server.process.pid
    assert server.told["model"] == "docs-gpt"
    assert sorted(server.told["replicas"]) == sorted(server.pids)
    cores = [psutil.Process(pid).cpu_affinity() for pid in server.told["replicas"]]
    assert set(cores[0]).isdisjoint(cores[1])
    assert {*cores[0], *cores[1]} == allowed_cores()
    assert server.ask("/health") == {"status": "ok", "replicas": 2, "replicas_ready": 2}
    assert server.ask("/v1/models")["data"][0]["id"] == "docs-gpt"


def test_the_proxy_has_no_torch(server: Served) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not show what a process has loaded")
    assert "libtorch" not in maps.read_text()
    assert "libtorch" in Path(f"/proc/{server.told['replicas'][0]}/maps").read_text()


def test_weights_exist_once(server: Served) -> None:
    mappings = [weights_mapping(pid) for pid in server.told["replicas"]]
    [path] = {mapping["path"] for mapping in mappings}
    size = Path(path).stat().st_blocks * 512
    assert all(mapping["rss"] > 0 for mapping in mappings)
    assert 0 < sum(mapping["pss"] for mapping in mappings) <= size
    assert sum(mapping["rss"] for mapping in mappings) > 1.5 * size
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700


def weights_mapping(pid: int) -> dict[str, Any]:
    """Return the path of the file of shared weights that a process has mapped, and its rss and pss in bytes."""
    [found] = [one for one in psutil.Process(pid).memory_maps(grouped=True) if one.path.endswith(".weights")]
    return {"path": found.path, "rss": found.rss, "pss": found.pss}


def test_only_this_user_reaches_a_replica(server: Served) -> None:
    for pid in server.pids:
        assert psutil.Process(pid).net_connections("tcp") == []
        paths = {one.laddr for one in psutil.Process(pid).net_connections("unix") if one.laddr}
        [path] = [Path(str(one)) for one in paths if str(one).endswith(".socket")]
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_replica_is_killed_under_load(server: Served) -> None:
    [first, _] = server.pids
    load = Load(server, 60, 30)
    ended = load.run([(0.4, lambda: kill(first))])
    broken = ended.pop("broken stream: replica_died", 0)
    assert ended == {"answered": 60 - broken}
    server.wait_said("takes requests again")
    assert first not in server.pids
    assert server.ask("/health")["replicas_ready"] == 2


def test_all_replicas_are_replaced_under_load(server: Served) -> None:
    before = set(server.pids)
    done = sum("is replaced" in line for line in server.said)
    load = Load(server, 100, 12)
    ended = load.run([(0.1, lambda: server.process.send_signal(signal.SIGHUP))])
    assert ended == {"answered": 100}
    server.wait_said("is replaced", done + 2)
    wait_for(lambda: len(server.pids) == 2)
    assert before.isdisjoint(server.pids)


def test_it_ends_when_it_is_told_to(server: Served) -> None:
    pids = server.pids
    weights = Path(weights_mapping(pids[0])["path"])
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(Load(server, 1, 1, max_tokens=300).one(0)))
    asking.start()
    wait_for(lambda: server.ask("/live")["num_running"] == 1)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    asking.join(30)
    assert answers == ["answered"]
    assert not any(map(psutil.pid_exists, pids))
    assert not weights.parent.exists()
    assert server.said[-1] == "whet serve: ended"
    assert not any("Traceback" in line for line in server.said)


def test_replicas_end_with_their_parent() -> None:
    with served("docs-gpt", "--replicas", "2", *OPTIONS) as server:
        pids = server.pids
        kill(server.process.pid)
        wait_for(lambda: not any(map(is_running, pids)), 10)
        assert len(pids) == 2 and not any(map(is_running, pids))


def test_tuned_models_are_served_by_replicas_too(tmp_path: Path) -> None:
    save(small(), tmp_path / "small")
    with served(str(tmp_path / "small"), "--replicas", "2") as server:
        assert server.told["model"] == "small"
        x = torch.randn(3, 4)
        expected = whet.load(tmp_path / "small")(x)
        body = {"inputs": [{"name": "input_0", "datatype": "FP32", "shape": [3, 4], "data": x.tolist()}]}
        for number in range(40):
            if number == 20:
                kill(server.told["replicas"][0])
            answer = server.ask("/v2/models/small/infer", body)
            found = {output["name"]: output for output in answer["outputs"]}
            torch.testing.assert_close(torch.tensor(found["logits"]["data"]).reshape(3, 3), expected.logits)
        assert server.ask("/v2/health/ready") == {"ready": True}


@pytest.mark.slow
def test_each_replica_may_be_several_processes() -> None:
    body = {"prompt": "The three rules are", "max_tokens": 24, "temperature": 0}
    with whet.Engine("src/whet/workloads/weights/docs-gpt", whet.EngineOptions(dtype="fp32")) as engine:
        expected = engine.generate(body["prompt"], whet.SamplingParams(max_tokens=24, temperature=0)).text
    with served("docs-gpt", "--replicas", "2", "--tensor-parallel-size", "2", *OPTIONS) as server:
        for pid in server.pids:
            rank = rank_of(pid)
            assert set(rank.cpu_affinity()) <= set(psutil.Process(pid).cpu_affinity())
            assert server.ask("/v1/completions", body)["choices"][0]["text"] == expected
            rank.kill()
            server.wait_said("takes requests again", 1 + sum("takes requests again" in line for line in server.said))
        assert sum("was ended by SIGKILL: start whet again" in line for line in server.said) == 2
        assert [server.ask("/v1/completions", body)["choices"][0]["text"] for _ in range(4)] == [expected] * 4
        ranks = [rank_of(pid) for pid in server.pids]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        wait_for(lambda: not any(map(is_running, (rank.pid for rank in ranks))))


def rank_of(pid: int) -> psutil.Process:
    """Return the other process that computes the model of a replica."""
    [found] = [one for one in psutil.Process(pid).children() if "tensor_parallel" in " ".join(one.cmdline())]
    return found


@pytest.mark.slow
def test_a_thousand_requests_with_a_kill_and_an_update() -> None:
    with served("docs-gpt", "--replicas", "2", *OPTIONS) as server:
        events = [
            (1 / 3, lambda: kill(server.pids[0])),
            (2 / 3, lambda: server.process.send_signal(signal.SIGHUP)),
        ]
        ended = Load(server, 1000, 10).run(events)
        broken = ended.pop("broken stream: replica_died", 0)
        assert ended == {"answered": 1000 - broken}
        assert broken <= 16  # no more than ran at once on the replica that was killed
        server.wait_said("is replaced", 2)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cores = len(allowed_cores())
    said = refusal(capsys, "docs-gpt", "--replicas", str(cores + 1))
    assert f"--replicas {cores + 1}: each replica needs a core of its own" in said
    assert "--replicas '0': write a number from 1 on" in refusal(capsys, "docs-gpt", "--replicas", "0")
    said = refusal(capsys, "docs-gpt", "--replicas", "2", "--memory", "900GiB")
    assert "--replicas 2: each needs at least" in said
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not valid JSON" in refusal(capsys, str(tmp_path), "--replicas", "2")


def test_a_replica_that_is_not_started_by_its_parent_ends() -> None:
    order = {"path": "/nowhere", "cores": [0], "parent": 1, "asked": {}}
    words = [sys.executable, "-m", "whet.server.replicas.worker"]
    ended = subprocess.run(words, input=json.dumps(order), capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert os.getpid() != 1
