"""Steps into rates and shares, by hand-made figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.scripts.monitor.messages import Steps
from whet.scripts.monitor.steps import StepCounter, StepTotals

PHASES = st.dictionaries(st.sampled_from(["data_wait", "forward", "backward", "rest"]), st.floats(0, 2))
STEPS = st.lists(st.tuples(st.floats(1e-3, 3), PHASES), min_size=1, max_size=20)


def totals_of(steps: list[tuple[float, dict[str, float]]]) -> StepTotals:
    counter = StepCounter()
    for latency_s, phases_s in steps:
        counter.add(latency_s, phases_s)
    return counter.take()


def test_cells_of_known_steps() -> None:
    counter = StepCounter()
    counter.add(0.1, {"data_wait": 0.04}, num_samples=8, num_tokens=80)
    counter.add(0.3, {"data_wait": 0.16}, num_samples=8, num_tokens=80)
    cells = counter.take().cells()
    assert tuple(cells["step_ms"]) == pytest.approx((200, 100, 300, 2))
    assert cells["steps_per_s"].mean == pytest.approx(5)
    assert cells["samples_per_s"].mean == pytest.approx(40)
    assert cells["tokens_per_s"].mean == pytest.approx(400)
    assert cells["share:data_wait"].mean == pytest.approx(50)
    assert cells["share:rest"].mean == pytest.approx(50)
    assert counter.take().cells() == {}


def test_what_nobody_counted_has_no_cell() -> None:
    cells = totals_of([(0.5, {})]).cells()
    assert set(cells) == {"step_ms", "steps_per_s"}


@given(STEPS)
def test_shares_add_up_to_the_step(steps: list[tuple[float, dict[str, float]]]) -> None:
    totals = totals_of(steps)
    shares = totals.shares()
    if totals.phases_s:
        assert sum(shares.values()) == pytest.approx(1)
        assert all(0 <= share <= 1 + 1e-9 for share in shares.values())
    else:
        assert shares == {}


@given(STEPS)
def test_as_a_message_and_back(steps: list[tuple[float, dict[str, float]]]) -> None:
    totals = totals_of(steps)
    back = Steps.model_validate(totals.to_json()).totals()
    assert back.cells() == totals.cells()
