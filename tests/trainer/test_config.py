"""The configuration of whet train: what is read, what is changed from the command line, and what is refused."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import OptionError, TargetError
from whet.trainer.config import TrainConfig, checked_config, read_config
from whet.trainer.sections import ScheduleSection
from whet.trainer.workload import Schedule

TOML = """
out = "run"
steps = 300

[model]
hidden_size = 32

[data]
train = "text.txt"
tokenizer = "characters"
"""


def written(tmp_path: Path, text: str = TOML) -> Path:
    path = tmp_path / "train.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_count_from_the_file_and_changes_from_here(tmp_path: Path) -> None:
    found = read_config(written(tmp_path), ["optimizer.lr=1e-2", "data.held_out=other.txt", "data.tokenizer=bytes"])
    assert found.out == tmp_path / "run"
    assert found.data.train == (tmp_path / "text.txt",)
    assert found.data.held_out == (Path("other.txt"),)
    assert (found.optimizer.lr, found.data.tokenizer) == (0.01, "bytes")
    assert found.model.config == {"hidden_size": 32}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["optimizer.lrr=1"], r"there is no key optimizer\.lrr; did you mean lr\?"),
        (["batch.microbatch_size=1"], r"no key batch\.microbatch_size; did you mean micro_batch_size\?"),
        (["batch.global_batch_size=10", "batch.micro_batch_size=4"], "no multiple of micro_batch_size 4"),
        (["optimizer.lr=fast"], r"optimizer\.lr: .*number"),
        (["optimizer.betas=[0.9, 1.5]"], r"optimizer\.betas\.1: "),
        (["steps=50"], "warmup_steps is 100, and the run has no more than|warmup_steps is 100, the run only 50 steps"),
        (["lr"], "write KEY=VALUE"),
        (["out.x=1"], "out is no table"),
        (["schedule.kind=sawtooth"], r"schedule\.kind: "),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: list[str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_config(written(tmp_path), changes)


def test_a_missing_key_and_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"the key data\.train is missing"):
        checked_config({"out": "x", "steps": 200, "model": {}, "data": {}}, "here")
    with pytest.raises(TargetError, match="is no TOML"):
        read_config(written(tmp_path, "out = "))
    with pytest.raises(TargetError, match="there is no configuration"):
        read_config(tmp_path / "none.toml")


@given(
    kind=st.sampled_from(["constant", "linear", "cosine", "wsd"]),
    warmup=st.integers(0, 20),
    steps=st.integers(21, 200),
    low=st.floats(0, 1),
)
def test_the_rate_rises_to_one_and_falls_to_its_least(kind: Any, warmup: int, steps: int, low: float) -> None:
    schedule = Schedule(ScheduleSection(kind=kind, warmup_steps=warmup, min_lr_ratio=low), steps)
    rates = [schedule(step) for step in range(steps + 1)]
    assert all(0 < rate <= 1 + 1e-12 or rate == low for rate in rates)
    assert rates[: warmup + 1] == sorted(rates[: warmup + 1])
    falls = rates[warmup:]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(falls))
    assert math.isclose(rates[warmup], 1.0)
    assert math.isclose(rates[steps], 1.0 if kind == "constant" else low, abs_tol=1e-12)


def test_cosine_is_pytorchs() -> None:
    import torch

    schedule = Schedule(ScheduleSection(kind="cosine", warmup_steps=0, min_lr_ratio=0.1), 50)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50, eta_min=0.1)
    for step in range(50):
        assert math.isclose(schedule(step), theirs.get_last_lr()[0], rel_tol=1e-9)
        optimizer.step()
        theirs.step()


def test_a_configuration_can_be_made_in_python() -> None:
    found = checked_config({"out": "x", "steps": 200, "model": {}, "data": {"train": "a.txt"}}, "here")
    assert isinstance(found, TrainConfig)
    assert found.batch.num_parts == 1
