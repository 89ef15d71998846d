"""A run that is killed with SIGKILL, however often and whenever, ends as the run that was left alone: bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from killed_runs import Forks, killed, left, started, whole
from tiny_run import tables

STEPS = 120


def configuration(place: Path, out: str, **changes: Any) -> Path:
    """Write a configuration with everything that could depend on where a run was cut.

    transformers' GPT-2 has dropout; documents are packed, shuffled, read by workers, and computed in micro-batches. A
    line of the log takes losses from before and after a checkpoint.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    model = place / "gpt2"
    if not model.is_dir():
        torch.manual_seed(1)
        sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
        GPT2LMHeadModel(GPT2Config(vocab_size=300, bos_token_id=0, eos_token_id=0, **sizes)).save_pretrained(model)
    made = tables(
        place,
        out=str(place / out),
        steps=STEPS,
        data={"tokenizer": "bytes", "separator": "\n", "pack": True, "num_workers": 2},
        batch={"global_batch_size": 8, "micro_batch_size": 4},
        evaluation={"eval_interval": 40},
        checkpoints={"save_interval": 3, "keep": 2},
        log={"log_interval": 2},
    )
    made["model"] = {"directory": str(model)}
    for name, change in changes.items():
        made[name] |= change
    file = place / f"{out}.toml"
    file.write_bytes(tomli_w.dumps(made).encode())
    return file


def check_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["last"] == other["last"] == f"step-{STEPS:08d}"
    assert one["log"] == other["log"]
    assert one["values"] == other["values"]
    assert one["tensors"].keys() == other["tensors"].keys()
    assert {"model/model.safetensors", f"{one['last']}/optimizer.safetensors"} < one["tensors"].keys()
    for file, tensors in one["tensors"].items():
        assert tensors.keys() == other["tensors"][file].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, other["tensors"][file][name]), f"{name} of {file}"


@pytest.mark.thorough
def test_a_run_that_is_killed_ends_as_one_that_is_not(tmp_path: Path) -> None:
    errors = tmp_path / "errors.txt"
    with Forks() as forks:
        whole(forks.start, configuration(tmp_path, "whole"), errors)
        config = configuration(tmp_path, "killed")
        seen = killed(forks.start, config, tmp_path / "killed", times=4, seed=3, errors=errors)
        assert seen["cut off"] > 0
        # Without workers the batches are the same, and so is all that comes of them.
        whole(forks.start, configuration(tmp_path, "alone", data={"num_workers": 0}), errors)
    check_equal(left(tmp_path / "killed"), left(tmp_path / "whole"))
    check_equal(left(tmp_path / "alone"), left(tmp_path / "whole"))
    log = [line["loss"] for line in left(tmp_path / "whole")["log"]]
    assert len(log) == STEPS // 2
    assert log[-1] < log[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = tmp_path / "errors.txt"
    whole(started, configuration(tmp_path, "whole"), errors)
    config = configuration(tmp_path, "killed")
    seen = killed(started, config, tmp_path / "killed", times=20, seed=5, errors=errors)
    with capsys.disabled():
        print(f"\n{json.dumps(seen)}")
    assert seen["cut off"] >= 3
    check_equal(left(tmp_path / "killed"), left(tmp_path / "whole"))
