from pathlib import Path

import pytest
import torch
from torch import nn

from whet.core.workload import Workload
from whet.errors import OptionError
from whet.workloads.sizes import checked_sizes, resized
from whet.workloads.target import resolve

TARGET = """
import torch
from torch import nn


def sized(seq=4):
    return nn.Linear(8, 2), torch.randn(2, seq, 8)
"""


def _workload() -> Workload:
    tokens = torch.arange(6).reshape(2, 3)
    batch = {"input_ids": tokens, "mask": tokens > 0, "scale": torch.ones(2, 5), "bias": torch.ones(7)}
    return Workload(model=nn.Identity(), inputs=[batch, batch])


def test_samples_and_tokens_are_repeated_or_cut() -> None:
    (batch,) = resized(_workload(), batch=3, seq=5).inputs
    assert isinstance(batch, dict)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 0, 1], [3, 4, 5, 3, 4], [0, 1, 2, 0, 1]]
    assert batch["mask"].shape == (3, 5)
    assert batch["scale"].shape == (3, 5)  # five features, not tokens: as they were
    assert batch["bias"].shape == (7,)
    cut = resized(_workload(), batch=1, seq=2)
    assert cut.num_samples == 1
    assert cut.inputs[0]["input_ids"].tolist() == [[0, 1]]  # type: ignore[call-overload]


def test_nothing_asked_nothing_changed() -> None:
    workload = _workload()
    assert resized(workload) is workload


def test_a_size_without_its_dimension_is_refused() -> None:
    images = Workload(model=nn.Identity(), inputs=[torch.ones(2, 3, 8, 8)])
    assert resized(images, batch=5).inputs[0].shape == (5, 3, 8, 8)  # type: ignore[union-attr]
    with pytest.raises(OptionError, match="seq does not apply"):
        resized(images, seq=16)
    with pytest.raises(OptionError, match="batch must be 1 or more"):
        checked_sizes({"batch": 0})
    with pytest.raises(OptionError, match="no size 'depth'"):
        checked_sizes({"depth": 3})


def test_a_function_that_takes_a_size_gets_it(tmp_path: Path) -> None:
    (tmp_path / "sized_target.py").write_text(TARGET)
    workload = resolve(f"{tmp_path / 'sized_target.py'}:sized", {"seq": 9, "batch": 6})
    assert workload.inputs[0].shape == (6, 9, 8)  # type: ignore[union-attr]
    assert workload.num_samples == 6


def test_tensors_inside_containers_are_resized_and_constants_stay() -> None:
    batch = {"x": torch.ones(4, 3), "more": {"ids": torch.ones(4, 5, dtype=torch.int64), "flag": True}, "n": 4}
    first = resized(Workload(model=torch.nn.Identity(), inputs=[batch]), batch=2, seq=7).inputs[0]
    assert isinstance(first, dict)
    assert (first["x"].shape, first["more"]["ids"].shape) == ((2, 3), (2, 7))
    assert (first["more"]["flag"], first["n"]) == (True, 4)
