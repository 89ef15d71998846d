"""The notes under the table of `whet bench` say why a cell has no figure."""

import pytest
from rich.console import Console

from whet.cli.bench_tables import show_notes
from whet.comparison.bench.report import Point, Sweep


def notes(capsys: pytest.CaptureFixture[str], **facts: object) -> str:
    point = Point.model_validate({"target": "digits-cnn", "latency_ms": 1.0, "p99_ms": 2.0, **facts})
    show_notes(Console(width=200), Sweep.model_construct(points=[point]), with_energy=False)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"busy": "other processes used 2 cores"}, "the machine was busy"),
        ({"status": "partial", "reason": "time"}, "the measurement ended early"),
        ({}, "the model's operations cannot be counted, as in a compiled or scripted model"),
    ],
)
def test_a_share_that_is_not_known_has_a_reason(
    capsys: pytest.CaptureFixture[str], facts: dict[str, str], why: str
) -> None:
    assert f"digits-cnn: the share of the limit is not known: {why}\n" in notes(capsys, **facts)


def test_nothing_is_said_where_all_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert notes(capsys, share_of_limit=0.5) == ""


def test_too_few_calls_for_p99(capsys: pytest.CaptureFixture[str]) -> None:
    assert notes(capsys, share_of_limit=0.5, p99_ms=None) == "P99 needs 500 calls: raise --budget\n"
