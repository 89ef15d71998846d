"""From what is named on the command line to a function that trains."""

from pathlib import Path

import pytest

from whet.errors import TargetError
from whet.workloads.training_target import training_function
from whet.workloads.user_code import what_and_where


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train_something.py"
    path.write_text("def train(steps=3):\n    raise ValueError('no data')\n\ndef needs(a, b): pass\n", encoding="utf-8")
    return path


def test_a_function_of_a_file(script: Path) -> None:
    function = training_function(f"{script}:train")
    with pytest.raises(ValueError, match="no data") as caught:
        function()
    assert what_and_where(caught.value) == "ValueError: no data (line 2 of train_something.py)"


def test_a_function_of_a_module() -> None:
    assert training_function("gc:collect")() >= 0


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("digits-cnn", "is a model to run, with no training loop to watch"),
        ("signs-stream", "is a stream of frames, with no training loop to watch"),
        ("hf:there", "is a model to run"),
        ("train.py", "names no function; give FILE.py:FUNCTION"),
        (":train", "names no function"),
        ("no_such_file.py:train", "no file no_such_file.py"),
    ],
)
def test_what_is_no_target(target: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        training_function(target)


def test_a_function_that_needs_arguments(script: Path) -> None:
    with pytest.raises(TargetError, match=r"needs arguments \(a, b\)"):
        training_function(f"{script}:needs")
    with pytest.raises(TargetError, match="did you mean train"):
        training_function(f"{script}:trian")
