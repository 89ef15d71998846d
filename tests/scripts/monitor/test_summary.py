"""The summary: its figures, its sentence, its JSON and its page, from runs of known figures."""

import io
import json
import re

import pytest
from made_runs import feed, make_run
from rich.console import Console

from whet.scripts.monitor import figures
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.series import Row
from whet.scripts.monitor.steps import StepTotals
from whet.scripts.monitor.summary import summarise
from whet.scripts.monitor.summary_page import render
from whet.scripts.monitor.terminal import show_summary


def made_run(gpu: bool = False) -> Run:
    run = make_run()
    feed(run, steps_ms=20, num_steps=9, gpu=gpu)
    feed(run, steps_ms=120, num_steps=1, gpu=gpu)
    return run


def test_figures() -> None:
    summary = summarise(made_run(gpu=True))
    assert summary.num_steps == 10
    assert summary.samples_per_s == pytest.approx(10 * 32 / 0.3)
    assert summary.tokens_per_s == pytest.approx(10 * 4096 / 0.3)
    assert summary.data_wait == pytest.approx(0.4)
    assert summary.phases["rest"] == pytest.approx(0.1)
    assert summary.latency is not None
    assert summary.latency.p50_ms == pytest.approx(20, rel=0.01)
    assert summary.latency.longest_ms == pytest.approx(120)
    assert summary.latency.p99_ms is None  # ten steps have none
    assert summary.cpu == pytest.approx(0.55)
    (gpu,) = summary.gpus
    assert (gpu.utilisation, gpu.fragmentation) == (pytest.approx(0.83), pytest.approx(0.035))
    assert gpu.peak_reserved_bytes == 5 << 30


def test_the_cpu_time_of_the_run_and_of_the_whole_machine_are_told_apart() -> None:
    run = make_run()
    feed(run)
    summary = summarise(run)
    assert (summary.cpu, summary.machine_cpu) == pytest.approx((0.55, 0.7))
    rows = dict(figures.table(summary))
    assert rows["CPU, this run"] == "55% of 4 cores, at most 55%"
    assert rows["CPU, whole machine"] == "70%"


def test_the_sentence_names_what_holds_it_back() -> None:
    assert summarise(made_run()).sentence.startswith("Input-bound: 40% of the step time")
    assert summarise(make_run()).sentence.startswith("No training step was seen")
    run = make_run()
    steps = StepTotals()
    steps.add(0.1, {"data_wait": 0.001}, None, None)
    run.add(Row(0, 1), steps, {})
    assert "1 step, half" in summarise(run).sentence
    assert "1.0% of the step time" in summarise(run).sentence


def test_every_figure_of_a_step_is_there_or_said_to_be_missing() -> None:
    run = make_run()
    assert set(summarise(run).unavailable) == {"steps"}
    steps = StepTotals()
    steps.add(0.1, {}, None, None)
    run.add(Row(0, 1), steps, {})
    assert set(summarise(run).unavailable) == {"samples", "tokens", "data wait"}
    shown = dict(figures.table(summarise(run)))
    assert shown["tokens"].startswith("not available here: no batch had input_ids")
    assert summarise(run).tokens_per_s is None


def test_partial_until_it_has_ended_well() -> None:
    run = made_run()
    assert summarise(run).is_partial
    run.end(0)
    assert not summarise(run).is_partial
    assert "partial" not in render(run)
    failed = made_run()
    failed.end(message="ended by SIGKILL")
    assert summarise(failed).is_partial
    assert "ended by SIGKILL. The figures are partial" in render(failed)


def test_json_has_null_for_what_is_not_there() -> None:
    facts = json.loads(summarise(made_run()).to_json())
    assert facts["format"] == 1
    assert facts["gpus"] == []
    assert facts["unavailable"] == {"GPU": "no driver"}
    assert json.loads(summarise(make_run()).to_json(indent=None))["cpu"] is None


def test_the_terminal_fits_80_columns() -> None:
    text = io.StringIO()
    run = made_run(gpu=True)
    run.note("a", "something [bold]to[/bold] know")
    run.end(3)
    show_summary(Console(file=text, width=80), summarise(run))
    assert all(len(line) <= 80 for line in text.getvalue().splitlines())
    assert "exit code 3" in text.getvalue()
    assert "The figures are partial" in text.getvalue()
    assert "[bold]to[/bold]" in text.getvalue()
    assert "40% of the step time" in text.getvalue()


def test_the_page_is_whole_in_itself_and_escapes() -> None:
    run = make_run('</script><script>alert("x")</script>')
    feed(run)
    page = render(run)
    assert "<script>alert" not in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "url(" not in page
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data.group(1))["rows"]["cells"]["cpu"]["mean"] == [55.0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.34, "9.3 s"), (75, "1 min 15 s"), (3700, "1 h 1 min"), (100_000, "1 d 3 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


def test_sizes_and_times_carry_their_unit() -> None:
    assert figures.num_bytes(1536 * 2**20) == "1.50 GiB"
    assert figures.num_bytes(None) == "—"
