"""Ranks of one training on one page: the figures of each, and the straggler, whose own work takes longest."""

from collections.abc import Iterator

import pytest
import rank_jobs
from made_runs import feed, make_run
from many import on_ranks
from prometheus_client.parser import text_string_to_metric_families

from browsing import launched, watched
from whet.scripts.monitor.exporter import Exporter
from whet.scripts.monitor.figures import table
from whet.scripts.monitor.ranks import RankSums, RankTable
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.server import PageServer
from whet.scripts.monitor.summary import summarise
from whet.scripts.monitor.summary_page import render


def sums(rank: int, num_steps: int, own_ms: float, *, pid: int | None = None, step_ms: float = 100.0) -> RankSums:
    """What a rank has done in steps that are equally long for all."""
    return RankSums(
        rank=rank,
        host=f"node{rank // 2}",
        pid=pid or 100 + rank,
        num_steps=num_steps,
        total_s=num_steps * step_ms / 1e3,
        communication_s=num_steps * (step_ms - own_ms) / 1e3,
        num_samples=8 * num_steps,
        rss_bytes=(rank + 1) << 30,
    )


def filled(ranks: RankTable, own_ms: list[float], num_steps: int = 10) -> RankTable:
    for rank, ms in enumerate(own_ms):
        ranks.add(sums(rank, num_steps, ms))
    return ranks


@pytest.mark.parametrize(
    ("own_ms", "late"),
    [
        ([40, 41, 95, 40], 2),
        ([96, 40], 0),
        ([40, 43, 41, 42], None),  # about equal
        ([44.1, 40], 0),
        ([43.9, 40], None),
    ],
)
def test_the_straggler_is_the_rank_with_most_work_of_its_own(own_ms: list[float], late: int | None) -> None:
    ranks = filled(RankTable(), own_ms)
    rows = ranks.rows()
    assert [row.step_ms for row in rows] == pytest.approx([100] * len(own_ms))
    assert [row.own_ms for row in rows] == pytest.approx(own_ms)
    assert [row.waits for row in rows] == pytest.approx([1 - ms / 100 for ms in own_ms])
    assert [row.samples_per_s for row in rows] == pytest.approx([80] * len(own_ms))
    assert [row.rank for row in rows if row.is_straggler] == ([] if late is None else [late])
    if late is None:
        assert ranks.straggler() == ""
    else:
        assert ranks.straggler().startswith(f"rank {late} on node{late // 2} (process {100 + late}) is the straggler")


def test_one_process_is_no_table_and_unseen_waits_accuse_nobody() -> None:
    ranks = RankTable()
    ranks.add(sums(0, 10, 50))
    assert ranks.rows() == ranks.sums() == []
    ranks.add(sums(1, 10, 90).model_copy(update={"communication_s": None}))
    assert [row.own_ms for row in ranks.rows()] == [pytest.approx(50), None]
    assert ranks.straggler() == ""


def test_figures_are_of_the_last_half_minute_and_of_the_whole_run_in_the_end() -> None:
    now = [0.0]
    ranks = RankTable(lambda: now[0])
    for second in range(0, 100, 10):  # rank 1 is slow at first, and rank 0 later
        now[0] = second
        steps = second + 10
        slow = min(steps, 70)
        for rank, ms in enumerate(
            [(50 * slow + 90 * (steps - slow)) / steps, (90 * slow + 50 * (steps - slow)) / steps]
        ):
            ranks.add(sums(rank, steps, ms))
    assert [row.own_ms for row in ranks.rows()] == pytest.approx([90, 50])
    assert ranks.straggler().startswith("rank 0")
    assert [row.own_ms for row in ranks.rows(whole=True)] == pytest.approx(
        [5700 / 90, 6900 / 90]
    )  # but for the first report
    assert ranks.straggler(whole=True).startswith("rank 1")
    ranks.add(sums(0, 4, 30, pid=7))  # it was started anew
    assert ranks.rows()[0].own_ms == pytest.approx(30)


@pytest.fixture
def run() -> Run:
    run = make_run()
    filled(run.ranks, [40, 42, 95, 41])
    return run


def test_prometheus_has_a_label_for_each_rank(run: Run) -> None:
    text = Exporter(run).scrape()[0].decode()
    samples = {
        (sample.name, sample.labels["rank"]): (sample.labels["host"], sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "rank" in sample.labels
    }
    assert samples["whet_rank_steps_total", "2"] == ("node1", 10)
    assert samples["whet_rank_step_seconds_total", "2"] == ("node1", pytest.approx(1.0))
    assert samples["whet_rank_communication_seconds_total", "2"] == ("node1", pytest.approx(0.05))
    assert samples["whet_rank_resident_memory_bytes", "0"] == ("node0", 1 << 30)
    assert [samples["whet_rank_is_straggler", str(rank)][1] for rank in range(4)] == [0, 0, 1, 0]
    assert not any(name == "whet_rank_tokens_total" for name, _ in samples)
    assert "whet_rank" not in Exporter(make_run()).scrape()[0].decode()


def test_the_summary_names_ranks_and_the_straggler(run: Run) -> None:
    rows = dict(table(summarise(run)))
    assert rows["rank 2"] == "node1: step 100 ms, 95.0 ms of its own, 5.0% waiting, memory 3.00 GiB"
    assert "rank 2 on node1 (process 102) is the straggler" in rows["straggler"]
    assert "its own work takes 95.0 ms of a step, and the others&#39; 41.0 ms" in render(run)


@pytest.fixture
def server(run: Run) -> Iterator[PageServer]:
    server = PageServer(run)
    server.start()
    feed(run)
    yield server
    run.end()
    server.stop()


@pytest.mark.thorough
def test_the_page_shows_all_ranks_and_the_straggler(server: PageServer, run: Run) -> None:
    with (
        launched() as browser,
        watched(browser, height=900, addresses=(server.url,), expected=("ERR_CONNECTION", "ERR_EMPTY")) as page,
    ):
        page.goto(server.url)
        page.locator("#ranks table tbody tr").nth(3).wait_for()
        head = page.locator("#ranks thead th").all_inner_texts()
        assert head == ["rank", "machine", "step", "own work", "waiting for others", "samples", "tokens", "memory"]
        third = page.locator("#ranks tbody tr").nth(2)
        cells = third.locator("th, td").all_inner_texts()
        assert cells == ["2 straggler", "node1, process 102", "100 ms", "95.0 ms", "5.0 %", "80.0/s", "—", "3.00 GiB"]
        assert page.locator("tr.straggler").count() == 1
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator("#straggler").inner_text().startswith("rank 2 on node1 (process 102) is the straggler")


def test_each_rank_reports_to_the_first_ones_monitor() -> None:
    first, *others = on_ranks(rank_jobs.watched, 3, 1)
    assert first["url"].startswith("http://127.0.0.1:")
    assert [one["url"] for one in others] == [None, None]  # one page for all
    assert [one["rows"] for one in others] == [[], []]
    rows = first["rows"]
    assert [row["rank"] for row in rows] == [0, 1, 2]
    assert [row["is_straggler"] for row in rows] == [False, True, False]
    assert first["straggler"].startswith("rank 1 on ")
    slow_ms = rank_jobs.SLOW_S * 1e3
    assert rows[1]["own_ms"] > slow_ms
    for row in (rows[0], rows[2]):
        assert row["step_ms"] > 0.9 * slow_ms
        assert row["own_ms"] < row["step_ms"] - slow_ms / 2  # it waits for most of the delay
        assert row["rss_bytes"] > 1 << 20
        assert row["samples_per_s"] == pytest.approx(8 * rank_jobs.SHARE / row["step_ms"] * 1e3, rel=0.05)
