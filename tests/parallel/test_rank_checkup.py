"""Processes compare themselves: a clock that is wrong by a known time, what differs, and which of them are slow."""

import json
import os
import subprocess
import sys

import pytest
from checkup_jobs import AHEAD_S, compared
from many import on_ranks

from whet.parallel.links import Link
from whet.parallel.rank_checkup import RankFacts, advice


def test_processes_compare_clocks_links_and_settings() -> None:
    first, *others = on_ranks(compared, 3)
    assert [one["ranks"] for one in others] == [first["ranks"]] * 2  # all know the same
    assert first["ranks"][0]["link"] is None
    for rank, ahead_s in ((1, AHEAD_S), (2, 0.0)):
        link = first["ranks"][rank]["link"]
        assert abs(link["clock_offset_s"] - ahead_s) <= link["clock_error_s"] + 1e-3
        assert 0 < link["clock_error_s"] < 0.05
        assert link["round_trip_s"] == pytest.approx(2 * link["clock_error_s"])
        assert link["bytes_per_s"] > 1e6
    small, large = first["all_reduces"]
    assert (small["num_bytes"], large["num_bytes"]) == (4, 16 << 20)
    assert 0 < small["seconds"] < large["seconds"]
    assert large["bytes_per_s"] == pytest.approx(2 * 2 / 3 * (16 << 20) / large["seconds"])
    problems = [entry["problem"] for entry in first["advice"]]
    assert any("rank 1: the clock of" in problem and "7.25 s ahead of rank 0's" in problem for problem in problems)
    assert "threads: rank 1 has 2, and the others 1" in problems
    assert "3 ranks on 1 machine reach one another" in first["sentence"]
    assert "gloo: built into torch" in first["text"]


def facts(rank: int, **changes: object) -> RankFacts:
    link = Link(round_trip_s=1e-3, clock_offset_s=0.0, clock_error_s=5e-4, bytes_per_s=1e9) if rank else None
    given = {
        **{"rank": rank, "host": f"node{rank // 2}", "whet": "1", "torch": "2.13", "python": "3.11.7"},
        **{"processor": "Zen 5", "cores": 8, "threads": 4, "interface": "eth0 10.0.0.1", "is_loopback": False},
        **{"flops": 1e11, "link": link},
    }
    return RankFacts.model_validate(given | changes)


def told(*ranks: RankFacts) -> str:
    return "\n".join(f"{entry.problem} -> {entry.remedy}" for entry in advice(ranks))


def test_equal_processes_get_no_advice() -> None:
    assert told(*map(facts, range(4))) == ""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"flops": 7.9e10}, "rank 3 is slow: it computes 79.0 GFLOP/s, and the median is 100"),
        ({"python": "3.12.1"}, "python: rank 3 has 3.12.1, and the others 3.11.7 -> install the same versions"),
        ({"processor": "Zen 2"}, "processor: rank 3 has Zen 2, and the others Zen 5 -> a step takes as long as"),
        ({"is_loopback": True, "interface": "lo 127.0.0.1"}, "rank 3: node1 is lo 127.0.0.1, which other machines"),
        (
            {"link": Link(round_trip_s=1e-3, clock_offset_s=-0.2, clock_error_s=5e-4, bytes_per_s=1e9)},
            "rank 3: the clock of node1 is 0.20 s behind rank 0's -> set clocks by NTP",
        ),
        (
            {"link": Link(round_trip_s=4e-3, clock_offset_s=0.0, clock_error_s=2e-3, bytes_per_s=4e8)},
            "rank 3 has a slow link: 400 MB/s, where the median is 1,000 and round trips of 4.00 ms, where the median",
        ),
    ],
)
def test_what_differs_or_is_slow_is_named(changes: dict[str, object], expected: str) -> None:
    found = told(facts(0), facts(1), facts(2), facts(3, **changes))
    assert expected in found
    assert found.count("->") == 1


def test_a_clock_that_may_be_right_is_not_accused() -> None:
    far = Link(round_trip_s=1.0, clock_offset_s=0.5, clock_error_s=0.5, bytes_per_s=1e9)
    assert "clock" not in told(facts(0), facts(1, link=far), facts(2), facts(3))


@pytest.mark.slow
def test_the_command_compares_the_processes_of_torchrun() -> None:
    run = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "whet", "doctor", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", *run], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    [page] = done.stdout.decode().splitlines()  # the first process alone prints
    assert [one["rank"] for one in json.loads(page)["ranks"]] == [0, 1]
