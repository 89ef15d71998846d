"""A run of whet train from its first step to its model: what it learns, how it goes on, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from tiny_run import base_model, config, tables, trained
from torch import Tensor

from processors import NEEDS_BFLOAT16
from whet.cli import main
from whet.core.recipe import Recipe, Step
from whet.errors import ModelError, OptionError, TargetError
from whet.models.decoder import load_decoder
from whet.trainer.config import checked_config
from whet.trainer.loop import run
from whet.trainer.result import TrainResult
from whet.trainer.setup import set_up
from whet.trainer.stops import stopping


def weights(result: TrainResult) -> dict[str, Tensor]:
    assert result.model is not None
    return dict(load_decoder(result.model).state_dict())


def test_a_run_learns_and_its_model_is_loaded_by_others(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = trained(config(tmp_path, steps=150, checkpoints={"save_interval": 50}, log={"log_interval": 50}))
    assert (found.step, found.stopped_by, found.exit_code) == (150, "", 0)
    assert found.held_out_loss is not None and found.held_out_loss < 1.2, "characters of known words: far below ln 27"
    assert found.model is not None
    ours, theirs = load_decoder(found.model), AutoModelForCausalLM.from_pretrained(found.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(found.model)
    ids = tokenizer("the sharp stone", return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == "the sharp stone"
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "held_out_loss" in line] == list(range(6, 151, 6))
    assert lines[-1]["tokens"] == 150 * 8 * 32


@pytest.mark.parametrize(
    "changes",
    [{}, {"batch": {"micro_batch_size": 2}}, {"data": {"pack": True, "separator": "\n"}}],
    ids=["plain", "accumulated", "packed"],
)
def test_a_run_goes_on_bit_for_bit(tmp_path: Path, changes: dict[str, dict[str, object]]) -> None:
    whole = trained(config(tmp_path, out=str(tmp_path / "whole"), **changes))
    made = config(tmp_path, **changes)
    stopped = trained(made, stop_at=5)
    assert (stopped.step, stopped.stopped_by, stopped.exit_code, stopped.model) == (5, "SIGTERM", 143, None)
    with pytest.raises(OptionError, match="holds a run already; go on with it by --resume"):
        trained(made)
    resumed = trained(made, resume=True)
    assert resumed.step == 12
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name
    logs = [(place / "log.jsonl").read_text().splitlines() for place in (whole.directory, resumed.directory)]
    losses = [[json.loads(line)["loss"] for line in log] for log in logs]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((Step(technique="autocast"), Step(technique="fused_optimizer")), marks=NEEDS_BFLOAT16),
        pytest.param(
            (Step(technique="bf16_parameters", options={"update": "stochastic"}), Step(technique="adafactor")),
            marks=NEEDS_BFLOAT16,
        ),
        pytest.param((Step(technique="adamw_8bit"),), marks=pytest.mark.thorough),  # its rates are tensors
    ],
    ids=["autocast", "stochastic rounding", "8-bit state"],
)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")  # float32 norms, from PyTorch
def test_a_recipe_goes_on_bit_for_bit(tmp_path: Path, steps: tuple[Step, ...]) -> None:
    recipe = tmp_path / "recipe.toml"
    Recipe(kind="training", steps=steps).write(recipe)
    sizes = {"hidden_size": 64, "intermediate_size": 128}  # smaller matrices have no 8-bit state
    whole = trained(config(tmp_path, out=str(tmp_path / "whole"), recipe=str(recipe), model=sizes))
    made = config(tmp_path, recipe=str(recipe), model=sizes)
    trained(made, stop_at=5)
    resumed = trained(made, resume=True)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    whole = trained(config(tmp_path, out=str(tmp_path / "whole"), steps=40))
    file = tmp_path / "train.toml"
    file.write_bytes(tomli_w.dumps(tables(tmp_path, steps=40)).encode())
    resume: list[str] = []
    for number in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "whet", "train", str(file), *resume], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen += line.startswith("step ")
            if seen == 7 + number:
                break
        process.kill()
        process.wait()
        process.stdout.close()
        resume = ["--resume"] if list((tmp_path / "run" / "checkpoints").glob("step-*")) else []
    assert resume
    ended = trained(config(tmp_path, steps=40), resume=True)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(ended)[name]), name


def test_a_loss_that_is_not_finite_ends_the_run_with_its_rows(tmp_path: Path) -> None:
    far = {"lr": 1e6, "name": "sgd", "max_norm": 0}
    made = config(tmp_path, optimizer=far, schedule={"warmup_steps": 0}, steps=60)
    with pytest.raises(ModelError, match=r"the loss of step \d+ is .*, on the rows \d+, .* of the training data; "):
        trained(made)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"sequence_length": 128}}, "the model takes 64 tokens"),
        ({"model": {"vocab_size": 4}}, r"holds token \d+, and the model knows the tokens 0 to 3"),
        ({"batch": {"global_batch_size": 100_000}}, "fewer than batch.global_batch_size"),
        ({"model": {"hidden_sizes": 3}}, "there is no key model.hidden_sizes"),
        ({"model": {"model_type": "gpt9"}}, "whet makes new models of llama"),
        ({"data": {"train": ["none.txt"]}}, "none.txt"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_step(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises((OptionError, TargetError), match=said):
        trained(config(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


def test_another_training_does_not_go_on(tmp_path: Path) -> None:
    trained(config(tmp_path), stop_at=4)
    for changes, said in (
        ({"optimizer": {"lr": 2e-2}}, r"\[optimizer\] changed"),
        ({"seed": 1}, "seed changed"),
        ({"batch": {"global_batch_size": 4}}, r"\[batch\] changed"),
    ):
        with pytest.raises(OptionError, match=said):
            trained(config(tmp_path, **changes), resume=True)
    (tmp_path / "text.txt").write_text("Now the data is another one. " * 2000)
    with pytest.raises((OptionError, TargetError), match="the data changed"):
        trained(config(tmp_path), resume=True)


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no whole checkpoint to go on from"):
        trained(config(tmp_path), resume=True)


def test_two_runs_in_one_directory_are_refused(tmp_path: Path) -> None:
    made, seen = config(tmp_path), []
    file = tmp_path / "train.toml"
    file.write_bytes(tomli_w.dumps(tables(tmp_path)).encode())

    def say(line: str) -> None:
        if line.startswith("step ") and not seen:
            command = [sys.executable, "-m", "whet", "train", str(file)]
            seen.append(subprocess.run(command, capture_output=True, text=True, check=False))

    run(set_up(made, lambda line: None), resume=False, say=say)
    assert seen[0].returncode == 2
    assert str(os.getpid()) in seen[0].stderr, seen[0].stderr


def test_the_command_trains_and_its_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threading.current_thread() is threading.main_thread()
    file = tmp_path / "train.toml"
    file.write_bytes(tomli_w.dumps(tables(tmp_path)).encode())
    with pytest.raises(SystemExit) as ended:
        main(["train", str(file), "steps=8", "--json"])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert (result["step"], result["stopped_by"]) == (8, "")
    assert f"whet serve {result['model']}" in err
    with pytest.raises(SystemExit) as ended:
        main(["train", str(file), "optimizer.learning_rate=1"])
    assert ended.value.code == 2
    assert "there is no key optimizer.learning_rate" in capsys.readouterr().err


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.name == ""
            os.kill(os.getpid(), signal.SIGTERM)
            assert (stop.name, stop.exit_code) == ("SIGTERM", 143)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_that_its_time_ends_is_scored(tmp_path: Path) -> None:
    result = trained(config(tmp_path, max_minutes=1e-6))
    assert result.stopped_by == "max_minutes" and result.step < result.steps
    assert result.held_out_loss is not None and result.model is not None


def test_tokens_and_a_model_need_no_tokenizer(tmp_path: Path) -> None:
    base = base_model(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (base / name).unlink(missing_ok=True)
    (np.arange(4000) % 20).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    raw = tables(tmp_path, steps=3, data={"train": [str(tmp_path / "tokens.bin")], "dtype": "uint16"})
    del raw["data"]["tokenizer"]
    raw["model"] = {"directory": str(base)}
    result = trained(checked_config(raw, "test"))
    assert result.model is not None and not (result.model / "tokenizer.json").exists()


def test_the_live_page_and_prometheus_follow_a_run(tmp_path: Path) -> None:
    """The page takes the steps once a second."""
    said: list[str] = []
    seen: dict[str, float] = {}

    def say(line: str) -> None:
        said.append(line)
        if not line.startswith("step") or "12/12" not in line:
            return
        (url,) = [one.removeprefix("live page: ") for one in said if one.startswith("live page: ")]
        end = time.monotonic() + 60
        while seen.get("whet_steps_total") != 12 and time.monotonic() < end:
            time.sleep(0.1)
            with urllib.request.urlopen(f"{url.rstrip('/')}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            pairs = [one.rsplit(" ", 1) for one in lines if not one.startswith("#")]
            seen.update({name: float(value) for name, value in pairs})

    run(set_up(config(tmp_path, log={"port": 0}), lambda line: None), resume=False, say=say)
    assert seen["whet_steps_total"] == 12
    assert seen["whet_samples_total"] == 12 * 8
    assert seen["whet_tokens_total"] == 12 * 8 * 32
    assert any(name.startswith("whet_phase_seconds_total") and "data" in name for name in seen)
