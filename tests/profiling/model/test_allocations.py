"""Tensor memory by line: against sizes worked out by hand and a ledger kept beside it."""

import inspect
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from whet.measure.source_location import Line, user_line
from whet.profiling.model.allocations import AllocationTracker, storage_key

FLOAT = 4
HERE = Path(__file__).name


def here() -> int:
    """The number of the line that calls this."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_what_is_made_and_freed_is_counted_to_the_byte() -> None:
    with AllocationTracker() as tracker:
        a = torch.zeros(10, 10)
        assert tracker.held_bytes == 400
        b = a + 1
        assert tracker.held_bytes == 800
        view = b.view(100)[:50].t()
        b.mul_(2)
        assert tracker.held_bytes == 800  # neither views nor changes in place make anything
        del b
        assert tracker.held_bytes == 800  # the view keeps it
        del view
        assert tracker.held_bytes == 400
        del a
        assert tracker.held_bytes == 0
    assert tracker.memory().peak_bytes == 800


def test_the_line_is_the_users() -> None:
    with AllocationTracker() as tracker:
        kept = nn.functional.gelu(torch.ones(8))
        line = here() - 1
    (found,) = tracker.alive()
    assert Path(found.line.file).name == HERE
    assert found.line.number == line
    assert found.line.function == "test_the_line_is_the_users"
    assert "nn.functional.gelu" in found.line.text
    assert (found.num_bytes, found.shape, found.dtype, found.device) == (32, (8,), "float32", "cpu")
    assert str(found.line).endswith(f"{HERE}:{line} (test_the_line_is_the_users)")
    assert kept.sum() > 0


def test_a_module_of_torch_is_not_the_users_but_its_caller_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(2, 4)
    with AllocationTracker() as tracker:
        y = model(x)
    lines = {a.line.function for a in tracker.alive() if not a.is_outside}
    assert lines == {"test_a_module_of_torch_is_not_the_users_but_its_caller_is"}
    outside = [a for a in tracker.alive() if a.is_outside]
    assert {a.num_bytes for a in outside} == {4 * 4 * FLOAT, 4 * FLOAT, 2 * 4 * FLOAT}  # weight, bias, input
    assert y.shape == (2, 4)


def test_saved_for_backward_is_alive_until_backward() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    x = torch.randn(8, 64)
    with AllocationTracker() as tracker:
        hidden = (x @ weight).relu()
        loss = hidden.sum()
        del hidden
        saved = tracker.held_bytes
        loss.backward()
        line = here() - 1
        gradients = [a for a in tracker.alive() if a.line.number == line]
    size = 8 * 64 * FLOAT
    assert saved == size + 64 * 64 * FLOAT + size + FLOAT  # x, weight, relu's output, the sum
    assert weight.grad is not None
    assert storage_key(weight.grad) in {a.key for a in gradients}


def test_weights_known_before_are_no_line_of_code() -> None:
    model = nn.Linear(10, 10)
    with AllocationTracker() as tracker:
        tracker.register(model.parameters())
        model(torch.ones(1, 10))
    memory = tracker.memory()
    assert memory.start_bytes == 440
    assert memory.end_bytes == 440
    before = [a for a in tracker.alive() if a.is_outside]
    assert [a.line.number for a in before] == [0, 0]
    assert "before" in str(before[0].line)


def test_who_holds_the_peak() -> None:
    with AllocationTracker() as tracker:
        small = torch.ones(100)
        small_line = here() - 1
        large = torch.ones(10_000)
        large_line = here() - 1
        del large
        again = torch.ones(500)
    memory = tracker.memory()
    assert memory.peak_bytes == 40_400
    assert [(use.line.number, use.num_bytes, use.num_tensors) for use in memory.peak_lines] == [
        (large_line, 40_000, 1), (small_line, 400, 1),
    ]  # fmt: skip
    assert memory.end_bytes == 2_400
    assert small.numel() + again.numel() == 600


def test_steps_are_told_apart() -> None:
    kept = []
    with AllocationTracker() as tracker:
        for i in range(3):
            kept.append(torch.ones(10 * (i + 1)))
            torch.ones(1000)
            tracker.step()
    assert tracker.memory().step_bytes == (40, 120, 240)
    assert tracker.memory().step_peak_bytes == (4040, 4120, 4240)
    assert sorted((a.step, a.num_bytes) for a in tracker.alive()) == [(0, 40), (1, 80), (2, 120)]


def test_from_python_and_numpy_data_it_is_this_lines() -> None:
    with AllocationTracker() as tracker:
        values = torch.tensor([1.0, 2.0, 3.0])
    (found,) = tracker.alive()
    assert not found.is_outside
    assert found.num_bytes == values.numel() * FLOAT


def test_tensors_without_memory_count_nothing() -> None:
    with AllocationTracker() as tracker:
        meta = torch.empty(1000, 1000, device="meta")
        sparse = torch.eye(3).to_sparse()
        empty = torch.empty(0)
        (sparse + sparse).to_dense()
    assert all(a.num_bytes < 1000 for a in tracker.alive())
    assert meta.shape[0] + sparse.shape[0] + empty.shape[0] == 1003


def test_the_timeline_is_bounded_and_keeps_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.profiling.model.allocations._MOST_POINTS", 20)
    with AllocationTracker() as tracker:
        kept = [torch.ones(1) for _ in range(500)]
    points = tracker.memory().points
    assert len(points) <= 21
    assert points[-1][1] == 500 * FLOAT == len(kept) * FLOAT
    assert [at for at, _ in points] == sorted(at for at, _ in points)


ACTIONS = st.lists(st.tuples(st.sampled_from(["make", "drop", "view", "inplace"]), st.integers(1, 64)), max_size=30)


@given(actions=ACTIONS)
def test_held_bytes_follow_any_program(actions: list[tuple[str, int]]) -> None:
    tensors: list[Tensor] = []
    most = 0
    with AllocationTracker() as tracker:
        for action, n in actions:
            if action == "make":
                tensors.append(torch.empty(n))
            elif tensors and action == "drop":
                tensors.pop(n % len(tensors))
            elif tensors and action == "view":
                tensors.append(tensors[n % len(tensors)].view(-1))
            elif tensors:
                tensors[n % len(tensors)].zero_()
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
            assert tracker.held_bytes == sum(storages.values())
            most = max(most, tracker.held_bytes)
        assert tracker.memory().peak_bytes == most


def test_user_line_without_any_frame_is_unknown() -> None:
    assert user_line(None).number == 0
    assert Line("x.py", 3, "f").text == ""
