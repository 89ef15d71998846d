"""Whether an artefact says that each call finds one range for all its samples."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_programs import save
from torch import nn

from whet.core.artefact import Artefact, load
from whet.core.artefact.indices import largest_indices
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.techniques.backend import inductor, onnxruntime
from whet.techniques.precision import int8_dynamic
from whet.techniques.technique import Candidate


class Looked(nn.Module):
    """Rows of a table, far larger from row 500 on, through two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 64)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 8)
        with torch.no_grad():
            self.table.weight[500:] *= 30

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.table(ids)))


def looked() -> ExaminedWorkload:
    torch.manual_seed(0)
    shapes = ((2, 5), (3, 5))
    return examine(Workload(model=Looked().eval(), inputs=[torch.randint(0, 9, shape) for shape in shapes]))


def dynamic(examined: ExaminedWorkload) -> Candidate:
    return int8_dynamic.apply(Candidate.original(examined), int8_dynamic.Options(rest="float32"))


def saved(candidate: Candidate, directory: Path) -> Artefact:
    return load(candidate.save(directory))


def test_a_program_shows_it(tmp_path: Path) -> None:
    plain = load(save(looked(), tmp_path / "plain"))
    assert plain.runtime.ranges_per_call is False
    assert largest_indices(plain.manifest.conditions) == {0: 999}
    assert saved(dynamic(looked()), tmp_path / "dynamic").runtime.ranges_per_call is True


def test_a_package_says_it_and_an_older_one_says_nothing(tmp_path: Path) -> None:
    directory = inductor.apply(dynamic(looked()), inductor.Options()).save(tmp_path / "model")
    assert load(directory).runtime.ranges_per_call is True
    path = directory / "artefact.json"
    manifest: dict[str, Any] = json.loads(path.read_text())
    manifest["settings"]["ranges_per_call"] = False
    path.write_text(json.dumps(manifest))
    assert load(directory).runtime.ranges_per_call is False
    del manifest["settings"]["ranges_per_call"]
    path.write_text(json.dumps(manifest))
    assert load(directory).runtime.ranges_per_call is None


@pytest.mark.parametrize(("mode", "expected"), [("dynamic", True), ("static", False)])
def test_an_onnx_model_shows_it(tmp_path: Path, mode: str, expected: bool) -> None:
    pytest.importorskip("onnxruntime")
    options = onnxruntime.Options(precision="int8", mode=mode)
    candidate = onnxruntime.apply(Candidate.original(looked()), options)
    assert saved(candidate, tmp_path / "model").runtime.ranges_per_call is expected
