"""What goes wrong while a run goes ends it with one message, and loses nothing."""

import itertools
import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from full_disk import largest_file
from test_loop import trained, weights
from tiny_run import config, tables

from whet.cli import main
from whet.core.recipe import Step
from whet.core.workload.training import Trainer
from whet.errors import ModelError, OptionError, OutputError, TargetError
from whet.models.decoder import load_decoder
from whet.parallel.division import Division
from whet.techniques.prepared_trainer import PreparedTrainer
from whet.trainer import memory_parts
from whet.trainer.checkpoints import Checkpoints
from whet.trainer.config import TrainConfig, checked_config
from whet.trainer.export import write_model
from whet.trainer.loop import run
from whet.trainer.metrics_log import Line, MetricsLog
from whet.trainer.model import TrainedModel
from whet.trainer.setup import set_up
from whet.trainer.state import state_of
from whet.trainer.tokens import file_digests


def of_tokens(place: Path, **changes: Any) -> TrainConfig:
    """Return a run on a file of tokens, which is mapped while it trains."""
    found = tables(place, **changes)
    file = place / "tokens.bin"
    if not file.is_file():
        np.random.default_rng(0).integers(0, 20, 10_000).astype("<u2").tofile(file)
    found["data"] |= {"train": [str(file)]}
    del found["data"]["tokenizer"]
    return checked_config(found, "test")


def newest(made: TrainConfig) -> int:
    found = Checkpoints(made.out / "checkpoints").newest()
    assert found is not None
    return found.step


def test_any_number_of_workers_goes_on_from_any_other(tmp_path: Path) -> None:
    whole = trained(config(tmp_path, out=str(tmp_path / "whole")))
    trained(config(tmp_path, data={"num_workers": 2}), stop_at=5)
    assert multiprocessing.active_children() == []
    resumed = trained(config(tmp_path, data={"num_workers": 3}), resume=True)
    assert multiprocessing.active_children() == []
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_is_written_to_ends_the_run_and_nothing_is_lost(tmp_path: Path, num_workers: int) -> None:
    whole = trained(of_tokens(tmp_path, out=str(tmp_path / "whole"), steps=60))
    made = of_tokens(tmp_path, steps=60, data={"num_workers": num_workers}, checkpoints={"save_interval": 100})
    file = tmp_path / "tokens.bin"
    content = file.read_bytes()

    def say(line: str) -> None:
        if line.startswith("step  4/"):
            os.truncate(file, 100)

    with pytest.raises(TargetError, match=r"tokens\.bin was written to .* it had 20,000 bytes and has 100; put back"):
        run(set_up(made, lambda line: None), resume=False, say=say)
    assert multiprocessing.active_children() == []
    assert newest(made) == 4 if not num_workers else newest(made) >= 4
    file.write_bytes(content)
    resumed = trained(made, resume=True)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_a_mapped_file_may_be_removed_or_replaced(tmp_path: Path) -> None:
    file = tmp_path / "tokens.bin"
    file.write_bytes(b"ab")
    before = file_digests.file_identity(file)
    file_digests.check_untouched(file, before)
    (tmp_path / "other").write_bytes(b"abcd")
    (tmp_path / "other").rename(file)
    file_digests.check_untouched(file, before)
    file.unlink()
    file_digests.check_untouched(file, before)


def test_a_log_that_cannot_be_written_ends_the_run_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MetricsLog.write

    def on_a_full_disk(self: MetricsLog, line: Line) -> None:
        if line.step == 4:
            self._file.close()
            self._file = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - the journal closes it
        write(self, line)

    monkeypatch.setattr(MetricsLog, "write", on_a_full_disk)
    made = config(tmp_path, checkpoints={"save_interval": 100})
    with pytest.raises(OutputError, match=r"log\.jsonl: No space left on device; free some space and go on with"):
        trained(made)
    assert newest(made) == 4
    monkeypatch.undo()
    assert trained(made, resume=True).step == 12


def test_a_model_that_cannot_be_written_leaves_the_older_one(tmp_path: Path) -> None:
    made = config(tmp_path)
    before = weights(trained(made))
    (made.out / ".model-1234").mkdir()  # of a process that was killed
    setup = set_up(made, lambda line: None)
    with largest_file(10_000), pytest.raises(OutputError, match=r"cannot write .*model: .*large.*; free some space"):
        write_model(setup, setup.model.module.state_dict(), made.out / "model")
    assert sorted(path.name for path in made.out.iterdir()) == ["checkpoints", "log.jsonl", "model"]
    for name, value in load_decoder(made.out / "model").state_dict().items():
        assert torch.equal(value, before[name]), name


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    far = {"name": "sgd", "lr": 1e38, "max_norm": 0}
    made = config(tmp_path, optimizer=far, schedule={"warmup_steps": 0}, checkpoints={"save_interval": 1})
    with pytest.raises(
        ModelError, match=r"the weights are not finite after step 2, on the rows .*step-00000001 is kept"
    ):
        trained(made)
    assert newest(made) == 1


def scripted(monkeypatch: pytest.MonkeyPatch, far: range) -> None:
    """Let the steps of a range have a loss of 1,000."""
    make, steps = Trainer.step_on, itertools.count(1)

    def step_on(self: Trainer, batches: list[Any]) -> torch.Tensor:
        loss = make(self, batches)
        return torch.tensor(1e3) if next(steps) in far else loss

    monkeypatch.setattr(Trainer, "step_on", step_on)


def test_odd_batches_do_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, range(21, 24))
    assert trained(config(tmp_path, steps=26)).stopped_by == ""


def test_losses_that_stay_far_end_a_run_and_keep_a_checkpoint_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, range(22, 100))
    sections: dict[str, Any] = {"checkpoints": {"save_interval": 1, "keep": 1}, "divergence": {"patience": 4}}
    with pytest.raises(
        ModelError,
        match=r"^the losses of the last 4 steps are more than .*: 1000 in step 25, on the rows .*step-00000021 is kept"
        r".*or set divergence\.factor = 0, if such losses are sound",
    ):
        trained(config(tmp_path, steps=40, **sections))
    other = config(tmp_path, steps=30, out=str(tmp_path / "other"), divergence={"factor": 0, "patience": 4})
    scripted(monkeypatch, range(22, 100))
    assert trained(other).step == 30


def test_a_factor_that_ordinary_losses_reach_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"divergence: factor is 0\.5, and ordinary losses reach 1; give more, or 0"):
        config(tmp_path, divergence={"factor": 0.5})


def test_a_line_has_the_rate_of_its_step_and_the_tokens_with_a_loss(tmp_path: Path) -> None:
    made = config(tmp_path, steps=6, data={"pack": True, "separator": "\n"}, schedule={"warmup_steps": 4})
    trained(made)
    lines = [json.loads(line) for line in (made.out / "log.jsonl").read_text().splitlines()]
    setup = set_up(made, lambda line: None)
    trainer, tokens = PreparedTrainer(setup.workload(), setup.steps).trainer, 0
    for line in lines:
        batches, rate = trainer.next_batches(), trainer.optimizer.param_groups[0]["lr"]
        trainer.step_on(batches)
        tokens += int((batches[0]["targets"] >= 0).sum())
        assert (line["lr"], line["tokens"]) == (pytest.approx(rate), tokens), line
    assert tokens < 6 * 8 * 32, "the last token of a document has no loss"


def test_a_text_without_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(TargetError, match=r"text\.txt: there is no text in data\.train"):
        trained(config(tmp_path))


def out_of_memory(*_: Any) -> Any:
    return torch.empty(2**50, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"vocab_size": 50_000}}, "logits .* or let --tune memory find .* chunked_loss"),
        (
            {"data": {"sequence_length": 64}, "batch": {"global_batch_size": 200}},
            "activations .* 100 or .* checkpointing",
        ),
        ({"batch": {"global_batch_size": 1}, "model": {"hidden_size": 128}}, "the optimiser's state .* adafactor"),
        (
            {
                "batch": {"global_batch_size": 1},
                "model": {"hidden_size": 128},
                "optimizer": {"name": "sgd", "momentum": 0},
            },
            "the weights .* make the model smaller, or .* bf16_parameters",
        ),
    ],
    ids=["logits", "activations", "optimiser", "weights"],
)
def test_the_part_that_takes_most_memory_is_named(
    tmp_path: Path, changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = set_up(config(tmp_path, **changes), lambda line: None)
    with (
        pytest.raises(TargetError, match=rf"^memory ran out in step 7 \(can't allocate .*\): \d+ rows.*: {said}"),
        memory_parts.memory_told("in step 7", setup),
    ):
        out_of_memory()
    with pytest.raises(ZeroDivisionError), memory_parts.memory_told("in step 7", setup):
        _ = 1 / 0


def test_a_step_without_memory_ends_the_run_and_the_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = config(tmp_path)
    trained(made, stop_at=5)
    monkeypatch.setattr(TrainedModel, "loss", out_of_memory)
    with pytest.raises(TargetError, match="memory ran out in step 6"):
        trained(made, resume=True)
    assert newest(made) == 5


def test_the_parts_are_those_of_a_step(tmp_path: Path) -> None:
    setup = set_up(config(tmp_path, batch={"micro_batch_size": 2}), lambda line: None)
    expected = memory_parts.memory_parts(setup)
    assert expected.rows == 2
    trainer = PreparedTrainer(setup.workload(), setup.steps).trainer
    trainer.step()
    tensors = state_of(trainer, {}, Division.alone()).tensors
    model = sum(x.nbytes for x in {x.data_ptr(): x for x in setup.model.module.parameters()}.values())
    moments = sum(x.nbytes for name, x in tensors.items() if name.endswith(("exp_avg", "exp_avg_sq")))
    assert expected.parts["their gradients"] == model
    assert expected.parts["the optimiser's state"] == moments == 2 * model
    after = memory_parts.memory_parts(setup, trainer.optimizer)
    assert moments <= after.parts["the optimiser's state"] <= 1.01 * moments
    assert expected.parts["logits with their gradients"] == 2 * 2 * 32 * setup.model.vocab_size * 4


def test_what_has_no_room_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(tmp_path)
    setup = set_up(made, lambda line: None)
    monkeypatch.setattr(memory_parts, "free_bytes", lambda **_: 100_000)
    with pytest.raises(TargetError, match=r"^a step needs \d+ kB more memory, and 100 kB are free: 8 rows at once"):
        memory_parts.check_memory(setup)
    memory_parts.check_memory(replace(setup, steps=(Step(technique="adafactor"),)))  # a recipe may need less
    monkeypatch.setattr("whet.trainer.model.free_bytes", lambda **_: 80_000)
    with pytest.raises(
        TargetError, match=r"the weights of this model take 8\d\.\d kB, and 80\.0 kB of memory are free"
    ):
        set_up(made, lambda line: None)


def test_a_second_ctrl_c_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(*_: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("whet.trainer.train.train", interrupted)
    file = tmp_path / "train.toml"
    file.write_bytes(tomli_w.dumps(tables(tmp_path)).encode())
    with pytest.raises(SystemExit) as ended:
        main(["train", str(file)])
    assert ended.value.code == 130
    assert "interrupted within a step. Go on" in capsys.readouterr().out
