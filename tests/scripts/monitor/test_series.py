"""A day of rows in the memory of minutes, with nothing lost but detail."""

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.scripts.monitor.series import Cell, Row, Series, columns

VALUES = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 100)), min_size=1, max_size=300)


def series_of(values: list[tuple[float, float]], **sizes: int) -> Series:
    series = Series(**sizes)
    for i, (value, weight) in enumerate(values):
        series.add(Row(i, i + 1, {"x": Cell.of(value, weight)}))
    return series


def test_a_day_is_bounded() -> None:
    series = Series()
    for i in range(86_400):
        series.add(Row(i, i + 1, {"x": Cell.of(float(i))}))
    history = series.history()
    assert len(history) <= 513
    assert len(series.after(0)) == 900
    assert (history[0].began_s, history[-1].ended_s) == (0, 86_400)
    assert all(first.ended_s == second.began_s for first, second in pairwise(history))
    assert series.whole()["x"] == Cell(pytest.approx(43_199.5), 0.0, 86_399.0, pytest.approx(86_400))


@given(VALUES)
def test_the_history_keeps_weighted_mean_and_extremes(values: list[tuple[float, float]]) -> None:
    cells = [row.cells["x"] for row in series_of(values, recent_rows=3, history_rows=4).history()]
    total = sum(weight for _, weight in values)
    assert sum(cell.weight for cell in cells) == pytest.approx(total)
    mean = sum(value * weight for value, weight in values) / total
    assert sum(cell.mean * cell.weight for cell in cells) / total == pytest.approx(mean, rel=1e-6, abs=1e-9)
    assert min(cell.low for cell in cells) == min(value for value, _ in values)
    assert max(cell.high for cell in cells) == max(value for value, _ in values)


def test_rows_after_those_that_are_known() -> None:
    series = series_of([(float(i), 1.0) for i in range(10)], recent_rows=4, history_rows=4)
    assert [row.began_s for row in series.after(8)] == [8, 9]
    assert [row.began_s for row in series.after(0)] == [6, 7, 8, 9]
    assert series.after(10) == []
    assert series.after(99) == []


def test_what_was_not_measured_stays_absent() -> None:
    series = Series(recent_rows=8, history_rows=2)
    for i in range(8):
        series.add(Row(i, i + 1, {"x": Cell.of(1.0)} if i == 3 else {}))
    assert series.whole()["x"] == Cell.of(1.0)
    assert columns(series.after(0))["cells"] == {"x": {"mean": [None] * 3 + [1.0] + [None] * 4}}


def test_columns_have_a_range_only_where_there_is_one() -> None:
    rows = [Row(0, 1, {"a": Cell.of(2.0), "b": Cell(2.0, 1.0, 3.0)})]
    assert columns(rows) == {
        "began_s": [0],
        "ended_s": [1],
        "cells": {"a": {"mean": [2.0]}, "b": {"mean": [2.0], "low": [1.0], "high": [3.0]}},
    }


def test_memory_of_a_long_run_is_that_of_a_short_one() -> None:
    draw = random.Random(0)
    series = series_of([(draw.random(), 1.0) for _ in range(2000)])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(2000, 22_000):
            series.add(Row(i, i + 1, {"x": Cell.of(draw.random())}))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1_500_000  # one cell a row: 1412 rows replaced by new ones, none more
