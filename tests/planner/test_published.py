"""Tests that docs/planner.md says of the published runs what whet predicts of them."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict each published run with the shipped constants, and find its row on the page."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import planner_page
    import planner_runs

    from whet.planner.predict import predict

    page = (ROOT / "docs" / "planner.md").read_text().splitlines()
    points = planner_runs.read_points()
    assert sum(point.is_left_out for point in points) == pytest.approx(len(points) / 3, rel=0.3)
    for point in points:
        prediction = predict(point.shape, point.cluster, point.layout, point.work)
        assert "| " + " | ".join(planner_page._time_row((point, prediction))) + " |" in page
        assert point.source


def test_a_run_does_not_widen_its_own_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without itself, the large miss has an interval of 0.01 * t(0.975, 3) = 0.032; with itself it lies within."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from planner_intervals import covered, covered_unseen, width

    misses = [0.01, -0.01, 0.01, 0.1]
    assert width(misses[:3]) == pytest.approx(0.0318, rel=1e-2)
    assert covered(misses, 0.1) == 4 and covered_unseen(misses) == 3
