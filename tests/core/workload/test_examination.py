"""What examine finds out about a model, and what it refuses."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whet.core.workload import Predict, Quality, Workload, examine, is_near, measure_quality
from whet.errors import InputsError, ModelError, TargetError


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def raising(error: Exception) -> Lambda:
    def function(x: Tensor) -> Tensor:
        raise error

    return Lambda(function)


def workload(function: Callable[..., Any] | nn.Module, *inputs: Any, **more: Any) -> Workload:
    model = function if isinstance(function, nn.Module) else Lambda(function)
    return Workload(model=model, inputs=list(inputs) or [torch.ones(2, 3)], **more)


def quality(measure: Callable[[Predict], Any]) -> Quality:
    return Quality("score", measure)


def test_a_sound_model_is_described() -> None:
    model = nn.Linear(3, 2)
    batches = [torch.randn(4, 3), torch.randn(4, 3)]
    examined = examine(workload(model, *batches, quality=quality(lambda predict: predict(batches[0]).sum())))
    assert [str(a) for a in examined.signature.inputs] == ["float32[4, 3]"]
    assert examined.score == pytest.approx(model(batches[0]).sum().item())
    assert len(examined.outputs) == 2
    torch.testing.assert_close(examined.outputs[1][0], batches[1] @ model.weight.T + model.bias)
    assert examined.flat_inputs[1][0] is batches[1]
    assert not examined.outputs[0][0].requires_grad
    assert not model.training


def test_outputs_are_of_the_calibration_batches() -> None:
    examined = examine(workload(lambda x: 2 * x, torch.ones(2, 3), calibration=[torch.zeros(2, 3)] * 3))
    assert len(examined.outputs) == len(examined.flat_calibration) == 3
    assert all(not output[0].any() for output in examined.outputs)


def test_tuples_and_dicts_of_inputs() -> None:
    by_position = examine(workload(lambda x, y: (x + y, {"difference": x - y}), (torch.ones(2), torch.ones(2))))
    assert [a.name for a in by_position.signature.inputs] == [None, None]
    assert len(by_position.outputs[0]) == 2
    batch = {"ids": torch.ones(1, 4), "mask": torch.ones(1, 4), "flag": True}
    by_name = examine(workload(lambda ids, mask, flag: ids * mask * flag, batch))
    assert [a.name for a in by_name.signature.inputs] == ["ids", "mask"]
    assert by_name.signature.constants == {"flag": True}


def test_batches_of_several_sizes_leave_dimensions_free() -> None:
    examined = examine(workload(lambda x: x + 1, torch.ones(2, 3), torch.ones(5, 3)))
    assert examined.signature.inputs[0].shape == (None, 3)


def test_calibration_and_quality_leave_dimensions_free() -> None:
    by_calibration = examine(workload(lambda x: x + 1, torch.ones(2, 3), calibration=[torch.ones(2, 4)]))
    assert by_calibration.signature.inputs[0].shape == (2, None)
    measure = quality(lambda predict: predict(torch.ones(64, 3)).mean())
    by_quality = workload(lambda x: x + 1, torch.ones(2, 3), quality=measure)
    assert examine(by_quality).signature.inputs[0].shape == (None, 3)
    without = examine(by_quality, with_quality=False)
    assert without.signature.inputs[0].shape == (2, 3)
    assert without.score is None


def test_what_the_quality_function_calls_with_is_not_kept() -> None:
    kept = []

    def measure(predict: Predict) -> float:
        x = torch.ones(7, 3)
        kept.append(weakref.ref(x))
        return float(predict(x).sum())

    examined = examine(workload(lambda x: x.sum(1), torch.ones(2, 3), quality=quality(measure)))
    gc.collect()
    assert examined.score == 21
    assert kept[0]() is None


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (nn.Linear(3, 2), torch.ones(2, 4)),
        (nn.Linear(3, 2), torch.ones(2, 3, dtype=torch.int64)),
        (nn.Linear(3, 2), (torch.ones(2, 3), torch.ones(2, 3))),
        (nn.Linear(3, 2), {"x": torch.ones(2, 3)}),
        (nn.Conv2d(3, 4, 3), torch.ones(1, 5, 8, 8)),
        (nn.Embedding(10, 4), torch.tensor([[11]])),
    ],
)
def test_inputs_that_do_not_fit(model: nn.Module, batch: Any) -> None:
    with pytest.raises(InputsError, match=r"the model raised .*Error on inputs \("):
        examine(workload(model, batch))


@pytest.mark.parametrize(
    "error", [RuntimeError("no luck\nsecond line"), KeyError("x"), ZeroDivisionError(), AssertionError("why")]
)
def test_a_model_that_raises(error: Exception) -> None:
    with pytest.raises(
        ModelError, match=rf"the model raised {type(error).__name__} on inputs \(float32\[2, 3\]\): .+"
    ) as e:
        examine(workload(raising(error)))
    assert "second line" not in str(e.value)
    assert e.value.__cause__ is error


def test_running_out_of_memory_is_not_called_the_models_fault() -> None:
    with pytest.raises(MemoryError):
        examine(workload(raising(MemoryError())))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_gives_no_numbers(value: float) -> None:
    with pytest.raises(ModelError, match="NaN or infinity"):
        examine(workload(lambda x: x * value))


def test_numbers_are_missed_in_later_batches_too() -> None:
    with pytest.raises(ModelError, match="NaN or infinity"):
        examine(workload(lambda x: x.log(), torch.ones(2), -torch.ones(2)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.rand(1),
        lambda x: torch.randint(0, 1000, (50,)),
        lambda x: nn.functional.dropout(x, 0.5),
        lambda x: 1_000_000 + torch.randint(0, 100, (20,)),  # close, but numbers of tokens or classes are exact
        lambda x: x[: int(torch.randint(1, 2**31, (1,)))].new_ones(int(torch.randint(1, 10**6, (1,)))),
    ],
)
def test_a_model_that_answers_differently_twice(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ModelError, match="not deterministic"):
        examine(workload(function))


def test_a_model_whose_number_of_outputs_changes() -> None:
    counter = iter(range(1, 100))
    with pytest.raises(TargetError, match=r"not deterministic|different structures"):
        examine(workload(lambda x: [x] * next(counter)))


def test_constants_that_follow_the_input_are_refused() -> None:
    with pytest.raises(TargetError, match="different structures or constants"):
        examine(workload(lambda x: (x, x.shape[0]), torch.ones(2, 3), torch.ones(4, 3)))


def test_dropout_is_switched_off() -> None:
    examined = examine(workload(nn.Dropout(0.5), torch.ones(100)))
    assert examined.outputs[0][0].sum() == 100


@pytest.mark.parametrize("output", [{}, (), 3, "text", None])
def test_a_model_without_tensors(output: Any) -> None:
    with pytest.raises(TargetError, match="no tensor"):
        examine(workload(lambda x: output))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, torch.tensor(math.nan)])
def test_a_quality_that_is_no_finite_number(value: Any) -> None:
    with pytest.raises(ModelError, match="quality 'score' is"):
        examine(workload(lambda x: x, quality=quality(lambda predict: value)))


@pytest.mark.parametrize("value", [None, "high", torch.ones(2, 2), [], ["a"], {"accuracy": 1}])
def test_a_quality_that_is_no_number(value: Any) -> None:
    with pytest.raises(
        TargetError, match="quality 'score' must return a number, or one number per sample; it returned a"
    ):
        examine(workload(lambda x: x, quality=quality(lambda predict: value)))


@pytest.mark.parametrize("value", [1, 0.5, True, torch.tensor(0.25), torch.ones(1, 1)])
def test_a_quality_that_is_a_number(value: Any) -> None:
    assert measure_quality(quality(lambda predict: value), lambda x: x) == float(value)


@pytest.mark.parametrize("error", [KeyError("label"), RuntimeError("shapes differ"), ValueError()])
def test_a_quality_that_raises(error: Exception) -> None:
    def measure(predict: Predict) -> float:
        raise error

    with pytest.raises(TargetError, match=f"quality 'score' cannot be measured: {type(error).__name__}: .+"):
        examine(workload(lambda x: x, quality=quality(measure)))


@pytest.mark.parametrize(
    "call",
    [
        lambda predict: predict(torch.ones(2, 3), scale=2.0).sum(),
        lambda predict: predict(x=torch.ones(2, 3)).sum(),
        lambda predict: predict(torch.ones(2, 3), torch.ones(2, 3)).sum(),
        lambda predict: predict(torch.ones(2, 3).double()).sum(),
        lambda predict: predict(torch.ones(3)).sum(),
    ],
)
def test_a_quality_that_calls_the_model_in_another_way(call: Callable[[Predict], float]) -> None:
    with pytest.raises(InputsError):
        examine(workload(lambda x, y=None, scale=1.0: x * scale, torch.ones(2, 3), quality=quality(call)))


def test_a_quality_runs_without_gradients() -> None:
    seen = []
    measure_quality(quality(lambda predict: seen.append(torch.is_grad_enabled()) or 1.0), lambda x: x)
    assert seen == [False]


def test_drop_is_relative_and_knows_the_better_side() -> None:
    accuracy, loss = Quality("accuracy", lambda p: 0.0), Quality("loss", lambda p: 0.0, higher_is_better=False)
    assert accuracy.drop(0.8, 0.76) == pytest.approx(0.05)
    assert accuracy.drop(0.8, 0.84) == pytest.approx(-0.05)
    assert loss.drop(2.0, 2.1) == pytest.approx(0.05)
    assert loss.drop(2.0, 1.9) == pytest.approx(-0.05)
    assert accuracy.drop(-2.0, -2.1) == pytest.approx(0.05)
    assert accuracy.drop(0.0, -0.1) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": "model"}, "must be a torch.nn.Module, not str"),
        ({"inputs": []}, "at least one batch"),
        ({"inputs": torch.ones(2, 3)}, "inputs must be a list of batches, not a Tensor"),
        ({"inputs": {"x": torch.ones(2, 3)}}, "inputs must be a list of batches, not a dict"),
        ({"inputs": (x for x in [torch.ones(1)])}, "inputs must be a list of batches, not a generator"),
        ({"calibration": torch.ones(2, 3)}, "calibration must be a list of batches, not a Tensor"),
        ({"inputs": ["text"]}, "a batch must be a tensor, a tuple of tensors or a dict of tensors, not str"),
    ],
)
def test_workloads_that_cannot_be(more: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Workload(**{"model": nn.Linear(3, 2), "inputs": [torch.ones(2, 3)], **more})


def test_defaults_follow_the_inputs() -> None:
    batch = {"ids": torch.ones(6, 2)}
    plain = workload(lambda ids: ids, batch)
    assert plain.num_samples == 6
    assert list(plain.calibration) == [batch]
    assert workload(lambda x: x, torch.tensor(1.0)).num_samples == 1
    assert workload(lambda x: x, num_samples=3).num_samples == 3


class Wavering(nn.Module):
    """The same outputs each time, but for one of them, which is `by` the first time and zero then."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = x.clone()
        y[0, 0] = self.by * (self.calls == 1)
        return y


def test_another_order_of_sums_is_no_randomness() -> None:
    inputs = [100 * torch.randn(64, 64)]
    examine(Workload(model=Wavering(0.0), inputs=inputs))
    examine(Workload(model=Wavering(0.01), inputs=inputs))
    with pytest.raises(ModelError, match="not deterministic"):
        examine(Workload(model=Wavering(1.0), inputs=inputs))


def test_tensors_are_near_within_a_share_of_a_usual_value() -> None:
    x = torch.tensor([100.0, 0.0, -100.0])
    assert is_near(x, x + 0.05)
    assert not is_near(x, x + 0.5)
    assert is_near(x, x + 0.5, tolerance=1e-2)
    assert is_near(x / 1e9, x / 1e9 + 1e-6, least=1e-5)
    assert not is_near(x / 1e9, x / 1e9 + 1e-6)
    assert not is_near(x, x.double())
    assert not is_near(x, x[:2])
    assert is_near(x[:0], x[:0])


def test_infinities_and_nan_are_near_themselves_alone() -> None:
    for odd in (math.inf, -math.inf, math.nan):
        x = torch.tensor([odd, 1.0])
        assert is_near(x, x)
        assert not is_near(x, torch.tensor([odd, 2.0]))
        assert not is_near(x, torch.tensor([0.0, 1.0]))
        assert not is_near(torch.tensor([0.0, 1.0]), x)


def test_whole_numbers_are_near_when_equal_and_complex_ones_part_by_part() -> None:
    yes = torch.tensor([True, False])
    assert is_near(yes, yes)
    assert not is_near(yes, ~yes)
    assert not is_near(torch.tensor([100_000]), torch.tensor([100_001]))
    z = torch.tensor([3 + 4j, 1 - 1j])
    assert is_near(z, 1.0001 * z.conj().conj())
    assert not is_near(z, z.conj())
