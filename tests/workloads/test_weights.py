import pytest
import torch
from benchmarks.built_in_weights.writing import save_weights, write_directory
from torch import nn

from whet.workloads.weights import load_weights


def test_round_trip_is_bf16(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model(torch.randn(5, 3))
    save_weights(model.state_dict(), tmp_path)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    load_weights(other, tmp_path)
    assert torch.equal(other[0].weight, model[0].weight.bfloat16().float())
    assert other[1].num_batches_tracked == 1


def test_directory_is_replaced_whole(tmp_path):
    wanted = tmp_path / "deep" / "name"
    write_directory(wanted, lambda directory: (directory / "a").write_text("1"))
    write_directory(wanted, lambda directory: (directory / "b").write_text("2"))
    assert [file.name for file in wanted.iterdir()] == ["b"]
    assert [file.name for file in wanted.parent.iterdir()] == ["name"]


def test_failure_leaves_the_old_directory(tmp_path):
    wanted = tmp_path / "name"
    write_directory(wanted, lambda directory: (directory / "a").write_text("1"))

    def fail(directory):
        (directory / "half").write_text("2")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        write_directory(wanted, fail)
    assert [file.name for file in tmp_path.rglob("*")] == ["name", "a"]
