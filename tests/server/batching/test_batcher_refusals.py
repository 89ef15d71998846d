"""Samples, outputs and options that the batcher refuses."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from held_batcher import LONG_MS, Gate, busy
from torch import Tensor, nn

from whet.errors import InputsError, ModelError, OptionError
from whet.server.batching.batcher import DynamicBatcher


def test_a_sample_of_another_kind_is_kept_apart_or_refused() -> None:
    gate = Gate()
    with busy(gate, max_batch=4) as batcher:
        good = [batcher.submit(torch.ones(1)) for _ in range(2)]
        odd = [batcher.submit(torch.ones(1, dtype=torch.long)), batcher.submit(torch.ones(1, 2))]
        gate.go_on.release(4)
        assert [future.result(30).item() for future in good] == [2, 2]
        assert [list(future.result(30).shape) for future in odd] == [[1], [1, 2]]
    assert [list(call.shape) for call in gate.calls] == [[1, 1], [2, 1], [1, 1], [1, 1, 2]]
    with DynamicBatcher(lambda x: x, example=torch.zeros(4, 2)) as batcher:
        fits = batcher.submit(torch.zeros(4, 2))
        for sample in (torch.zeros(4, 2).double(), torch.zeros(4), torch.zeros(4, 3), {"x": torch.zeros(4, 2)}):
            with pytest.raises(InputsError, match=r"the example was \(float32\[4, 2\]\)"):
                batcher.submit(sample)
        assert fits.result(30).shape == (4, 2)


@pytest.mark.parametrize("sample", [None, 3, "text", (), {}, (torch.zeros(1), 2), {"x": [1.0]}])
def test_what_is_no_sample(sample: Any) -> None:
    with DynamicBatcher(lambda x: x) as batcher, pytest.raises(InputsError):
        batcher.submit(sample)


def test_lengths_that_differ_need_a_word_on_the_outputs() -> None:
    with DynamicBatcher(lambda x: x) as batcher:
        batcher.submit(torch.zeros(3))
        batcher.submit(torch.zeros(3))
        with pytest.raises(OptionError, match="give cut=True"):
            batcher.submit(torch.zeros(4))
    with DynamicBatcher(lambda x: x, buckets=(4, 8)) as batcher:
        batcher.submit(torch.zeros(4))
        with pytest.raises(OptionError, match="give cut=True"):
            batcher.submit(torch.zeros(3))
        with pytest.raises(InputsError, match="length 9 is above the largest bucket, 8"):
            batcher.submit(torch.zeros(9))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.sum(), r"the model returns \[\] for 2 samples"),
        (lambda x: x[:1], r"the model returns \[1, 3\] for 2 samples"),
        (lambda x: {"a": (x, x.T)}, r"the model returns \[3, 2\] at a.1 for 2 samples"),
        (lambda x: object(), "returns an object, which cannot be split"),
        (lambda x: x[:, :2], r"\[2, 2\] for samples padded to 3: dimension 1 is not their length"),
    ],
)
def test_outputs_that_cannot_be_split(function: Callable[[Tensor], Any], said: str) -> None:
    with DynamicBatcher(function, max_batch=2, max_wait_ms=LONG_MS, cut=True) as batcher:
        futures = [batcher.submit(torch.zeros(length)) for length in (3, 2)]
        for future in futures:
            with pytest.raises(ModelError, match=said):
                future.result(30)


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch": 0},
        {"max_wait_ms": -1.0},
        {"max_wait_ms": float("nan")},
        {"max_wait_ms": float("inf")},
        {"max_waiting": 0},
        {"buckets": (8, 4)},
        {"buckets": (0, 4)},
        {"batch_sizes": ()},
        {"batch_sizes": (4,), "max_batch": 5},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    before = threading.active_count()
    with pytest.raises(OptionError):
        DynamicBatcher(lambda x: x, **options)
    assert threading.active_count() == before


def test_a_module_in_training_mode() -> None:
    with pytest.raises(OptionError, match=r"call \.eval\(\)"):
        DynamicBatcher(nn.BatchNorm1d(3))
