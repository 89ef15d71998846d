"""What processes do in the tests of runs on several: runs of whet train, stopped and resumed."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from tiny_run import config

from whet.core.workload.training import OutputLoss, Trainer, TrainingWorkload
from whet.parallel.division import Division, division_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.ranks import Ranks
from whet.trainer.config import TrainConfig, checked_config
from whet.trainer.loop import run
from whet.trainer.result import TrainResult
from whet.trainer.setup import set_up
from whet.trainer.state import restore, state_of


def run_with(
    ranks: Ranks, made: TrainConfig, *, resume: bool = False, stop_at: int | None = None
) -> tuple[TrainResult, list[str]]:
    """Train on all processes, and return the result and what was said; a signal asks for the end after a step."""
    said = []

    def say(line: str) -> None:
        said.append(line)
        words = line.split()
        if ranks.is_first and words[0] == "step" and words[1].startswith(f"{stop_at}/"):
            os.kill(os.getpid(), signal.SIGTERM)

    setup = ranks.all_succeed("the set-up", lambda: set_up(made, say) if ranks.is_first else None)
    setup = ranks.all_succeed("the others' set-up", lambda: setup or set_up(made, say))
    division = division_of(made.parallel, ranks, torch.device("cpu"))
    return run(setup, resume=resume, say=say, division=division), said


def runs(ranks: Ranks, work: list[tuple[dict[str, Any], bool]]) -> list[int]:
    """Do the runs of configurations one after the other, each with whether it goes on, and return their steps."""
    return [run_with(ranks, checked_config(tables, "test"), resume=resume)[0].step for tables, resume in work]


def compressed_and_stopped(ranks: Ranks, place: Path) -> dict[str, Any]:
    """Return what is said of a run, and the held-out losses of one and of another that was stopped in between."""
    plan = {"compression": "powersgd", "powersgd_rank": 1, "powersgd_start_step": 2}
    low = {"steps": 6, "log": {"log_interval": 1}, "parallel": plan}
    straight = run_with(ranks, config(place, out=str(place / "straight"), **low))[0]
    run_with(ranks, config(place, out=str(place / "stopped"), **low), stop_at=3)  # all agree on it in step 4
    resumed, said = run_with(ranks, config(place, out=str(place / "stopped"), **low), resume=True)
    cast = config(place, out=str(place / "cast"), steps=6, parallel={"compression": "bf16"})
    return {
        "notes": run_with(ranks, cast)[0].notes,
        "losses": (straight.held_out_loss, resumed.held_out_loss),
        "went on": any(line.startswith("going on after step 4") for line in said),
    }


def drawn(ranks: Ranks, plan: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return what one process would draw next in a run, and what this one draws that goes on with it by a plan."""
    division = division_of(ParallelPlan(**plan), ranks, torch.device("cpu"))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    batches = [torch.ones(1, 2)]
    trainer = Trainer(
        TrainingWorkload(model=model, loss=OutputLoss(), optimizer=lambda parameters: optimizer, batches=batches)
    )
    state = state_of(trainer, {"step": 3}, Division.alone())
    alone: list[float] = torch.rand(3).tolist()
    restore(trainer, state, division)
    return alone, torch.rand(3).tolist()
