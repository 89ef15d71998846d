"""`whet.profile_target` and `whet profile TARGET`: the same report."""

import json
from pathlib import Path

import pytest

from whet.cli import main
from whet.errors import OptionError, OutputError, TargetError
from whet.profiling.model.report import Report, as_json
from whet.tuner.target_profile.model import profile_target

pytestmark = pytest.mark.usefixtures("forked")

TARGET = """
import torch
from torch import nn

def fine():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)), torch.randn(16, 64)

def breaks():
    raise RuntimeError("the wheel came off")
"""


@pytest.fixture
def targets(tmp_path: Path) -> str:
    path = tmp_path / "profile_targets.py"
    path.write_text(TARGET)
    return str(path)


def test_the_command_and_the_function_find_the_same(
    targets: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = profile_target(f"{targets}:fine", out=tmp_path / "out", depth=2, on_busy="go-on")
    with pytest.raises(SystemExit) as left:
        main(["profile", f"{targets}:fine", "--depth", "2", "--on-busy", "go-on", "--json"])
    assert left.value.code == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    mine = as_json(report)
    assert mine.keys() == shown.keys() - {"target", "out"}
    for key in ("name", "device", "dtype", "total_flops", "num_steps", "partial"):
        assert mine[key] == shown[key]
    assert [layer["name"] for layer in mine["layers"]] == [layer["name"] for layer in shown["layers"]]
    assert report.total_flops == 2 * 16 * (64 * 128 + 128 * 8)
    assert json.loads((tmp_path / "out" / "profile.json").read_text()) == json.loads(json.dumps(mine))


def test_what_is_wrong_is_raised(targets: str, tmp_path: Path) -> None:
    given: list[Report] = []
    with pytest.raises(TargetError, match="the wheel came off"):
        profile_target(f"{targets}:breaks", on_busy="go-on", ended_early=given.append)
    assert not given
    with pytest.raises(OutputError, match="exists already"):
        profile_target(f"{targets}:fine", out=tmp_path)
    with pytest.raises(OptionError, match="depth"):
        profile_target(f"{targets}:fine", depth=0)
    with pytest.raises(OptionError, match="--on-busy"):
        profile_target(f"{targets}:fine", on_busy="hope")
