"""What processes do in the tests of whet train on several of them, and what is left of such a run."""

import errno
import json
import os
import signal
import time
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import tomli_w
import torch
from many import Group
from safetensors.torch import load_file

# Rows have different numbers of targets, and processes different numbers of rows.
UNEVEN = {"batch": {"global_batch_size": 7, "micro_batch_size": 7}, "data": {"pack": True, "sequence_length": 24}}
_FIGURES = ("step", "tokens", "loss", "lr", "gradient_norm", "held_out_loss")


def written(place: Path, name: str, **changes: Any) -> Path:
    """Write the configuration of a tiny run into a directory, and return its file."""
    tables = {**tiny_run.tables(place, **changes), "out": str(place / name), "threads": 1}
    file = place / f"{name}.toml"
    file.write_text(tomli_w.dumps(tables))
    return file


def trained(world_size: int, file: Path, *changes: str, resume: bool = False) -> list[dict[str, Any]]:
    """Run `whet train` on so many processes, and return what came of it on each."""
    with Group(train_here, world_size, str(file), list(changes), resume) as group:
        answers = group.answers()
    faults = [fault for fault, _ in answers if fault]
    assert not faults, "\n".join(faults)
    return [found for _, found in answers]


def refused(world_size: int, file: Path, *changes: str, resume: bool = False, fault: str = "") -> list[str]:
    """Run `whet train` on processes that all end with an error, and return the message of each that tells people."""
    with Group(train_here, world_size, str(file), list(changes), resume, fault) as group:
        answers = group.answers()
    messages = []
    for text, found in answers:
        assert found is not None or fault, text
        assert found is None or "error" in found, found
        if found is not None and not found["is_told"]:
            messages.append(found["error"])
    return messages


def train_here(file: str, changes: list[str], resume: bool, fault: str = "") -> dict[str, Any]:
    """Run this process's part of `whet train`, and return what came of it."""
    from whet.errors import WhetError
    from whet.trainer.train import train

    misbehave(fault)
    said: list[str] = []
    rank = int(os.environ["WHET_RANK"])
    changes = [
        change.removeprefix(f"{rank}:") for change in changes if change[:2] in (f"{rank}:",) or change[1:2] != ":"
    ]
    try:
        found = train(file, changes, resume=resume, say=said.append)
    except WhetError as error:
        return {"error": str(error), "is_told": getattr(error, "is_told", False), "said": said}
    return {"step": found.step, "held_out": found.held_out_loss, "exit_code": found.exit_code, "said": said}


def misbehave(fault: str) -> None:
    """Have this process fail as `fault` says: "RANK WHAT STEP"."""
    if not fault:
        return
    rank, what, step = fault.split()
    if os.environ["WHET_RANK"] != rank:
        return
    if what == "full":
        from whet.trainer.checkpoints import writing

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        writing._write = full
        return
    from whet.parallel.pipeline.pipeline_trainer import PipelineTrainer
    from whet.parallel.rank_trainer import RankTrainer

    steps = [0]

    def failing(self: Any, compute: Any, *args: Any, **kwargs: Any) -> Any:
        steps[0] += 1
        if steps[0] == int(step):
            match what:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "term":
                    os.kill(os.getpid(), signal.SIGTERM)
                case "hang":
                    time.sleep(3600)
                case "raise":
                    raise MemoryError
        return compute(self, *args, **kwargs)

    for kind in (RankTrainer, PipelineTrainer):  # each has its own
        kind.compute = partialmethod(failing, kind.compute)  # type: ignore[assignment]


def log(out: Path) -> list[dict[str, Any]]:
    """Return the figures of a run that must not depend on how many processes made it."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{name: line.get(name) for name in _FIGURES} for line in lines]


def weights(out: Path) -> dict[str, Any]:
    return load_file(out / "model" / "model.safetensors")


def check_same(found: Path, wanted: Path, *, steps: int = 12) -> None:
    """Compare a run line by line with another, whose sums have another order."""
    mine, theirs = log(found), log(wanted)
    assert [line["step"] for line in mine] == [line["step"] for line in theirs] == list(range(1, steps + 1))
    for one, other in zip(mine, theirs, strict=True):
        assert one["tokens"] == other["tokens"] and one["lr"] == other["lr"]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-4)
        assert (one["held_out_loss"] is None) == (other["held_out_loss"] is None)
        if one["held_out_loss"] is not None:
            assert one["held_out_loss"] == pytest.approx(other["held_out_loss"], rel=1e-6)
    kept, known = weights(found), weights(wanted)
    assert kept.keys() == known.keys()
    for name, value in kept.items():
        torch.testing.assert_close(value, known[name], rtol=1e-4, atol=2e-5)
