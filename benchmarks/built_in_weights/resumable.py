"""Train in stages that can be cut off at any moment and go on exactly: AdamW, a warm-up, a cosine, a limit of time.

A stage's state is one file, which appears whole or not at all. All random numbers of a step must depend on the step's
number alone; then a training that was cut off ends with the same bits as one that was not, where the limit is a number
of steps. With a limit of time, the learning rate depends on the time as well.
"""

import io
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whet.errors import CheckpointError, OptionError, foreign
from whet.files import usable_directory, write_whole

SAVE_EVERY_S = 120.0
SAY_EVERY_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Say when a stage ends. The limit that is reached first counts.

    Attributes:
        minutes: Minutes of optimiser steps; None for no limit.
        steps: Optimiser steps; None for no limit.

    Raises:
        OptionError: There is no limit, or one is not above 0.
    """

    minutes: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.minutes is None and self.steps is None:
            raise OptionError("give a limit of minutes or of steps")
        for name, value in (("minutes", self.minutes), ("steps", self.steps)):
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name} must be above 0; got {value}")

    def progress(self, seconds: float, step: int) -> float:
        """Return the share of the stage that is done after some seconds and steps; it has ended at 1."""
        of_time = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        of_steps = 0.0 if self.steps is None else step / self.steps
        return min(1.0, max(of_time, of_steps))


@dataclass(kw_only=True)
class Stage:
    """Hold one training.

    Attributes:
        name: The name of its state file, NAME.pt, and of its lines.
        modules: What is saved by name: the network that learns and the averages of its weights.
        learner: The name of the network that learns.
        loss: Returns the loss of the step with a number.
        batch_size: Samples of a step.
        learning_rate: The highest learning rate, after the warm-up.
        after_step: Called with the step's number after each update, as to average weights.
        settings: What must be equal for the stage to go on. It is saved as text.
        weight_decay: The weight decay of matrices and kernels.
        warmup: Steps of the warm-up.
    """

    name: str
    modules: dict[str, nn.Module]
    learner: str
    loss: Callable[[int], Tensor]
    batch_size: int
    learning_rate: float
    after_step: Callable[[int], None] = lambda step: None
    settings: Mapping[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.01
    warmup: int = 100


def fit(stage: Stage, limit: Limit, directory: Path, *, save_every_s: float = SAVE_EVERY_S) -> int:
    """Train a stage to its limit, from its state file where there is one, and return the number of steps.

    Args:
        stage: The stage. Its modules are in eval mode in the end.
        limit: When it ends. A stage that has ended goes on where the limit is larger now.
        directory: Where the state file is; it is made if there is none.
        save_every_s: Seconds of training between two savings.

    Raises:
        CheckpointError: The state file is damaged, or of another training.
        OutputError: The directory cannot be written.
    """
    path = usable_directory(directory) / f"{stage.name}.pt"
    model = stage.modules[stage.learner].train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": stage.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=stage.learning_rate, betas=(0.9, 0.99))
    step, seconds = _load(stage, optimizer, path)
    if step:
        _say(f"{stage.name}: goes on after step {step}, {seconds / 60:.1f} minutes")

    saved_at, said = seconds, _Said(stage, step, seconds)
    saved_step = step
    while (done := limit.progress(seconds, step)) < 1:
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate * _share(step, stage.warmup, done)
        optimizer.zero_grad()
        loss = stage.loss(step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        stage.after_step(step)
        step += 1
        seconds += time.perf_counter() - began
        said.add(loss.detach(), step, seconds, limit)
        if seconds - saved_at >= save_every_s:
            _save(stage, optimizer, path, step, seconds)
            saved_at, saved_step = seconds, step
    if step > saved_step:
        _save(stage, optimizer, path, step, seconds)
    for module in stage.modules.values():
        module.eval()
    return step


def average(mean: nn.Module, model: nn.Module, decay: float) -> None:
    """Move a module's parameters towards a model's: mean = decay * mean + (1 - decay) * model. Buffers are copied."""
    with torch.no_grad():
        torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), 1 - decay)
        for kept, new in zip(mean.buffers(), model.buffers(), strict=True):
            kept.copy_(new)


def _share(step: int, warmup: int, done: float) -> float:
    """Return a step's learning rate as a share of the highest: a linear rise, then a cosine down to a twentieth."""
    return min((step + 1) / warmup, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


class _Said:
    """Print a line of progress now and then: the mean loss since the line before, and samples a second."""

    def __init__(self, stage: Stage, step: int, seconds: float) -> None:
        self._stage = stage
        self._losses: list[Tensor] = []
        self._step, self._seconds = step, seconds

    def add(self, loss: Tensor, step: int, seconds: float, limit: Limit) -> None:
        """Note a step's loss, and print a line where the last one is long ago or the stage ends."""
        self._losses.append(loss)
        done = limit.progress(seconds, step)
        if seconds - self._seconds < SAY_EVERY_S and done < 1:
            return
        rate = (step - self._step) * self._stage.batch_size / (seconds - self._seconds)
        mean = float(torch.stack(self._losses).mean())
        _say(
            f"{self._stage.name}: step {step}, {step * self._stage.batch_size} samples, loss {mean:.5f}, "
            f"{rate:.1f} samples/s, {seconds / 60:.1f} minutes, {done:.0%} done"
        )
        self._losses, self._step, self._seconds = [], step, seconds


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _save(stage: Stage, optimizer: torch.optim.Optimizer, path: Path, step: int, seconds: float) -> None:
    """Write the state file."""
    content = io.BytesIO()
    modules = {name: module.state_dict() for name, module in stage.modules.items()}
    state = {"step": step, "seconds": seconds, "settings": _text(stage), "modules": modules}
    torch.save({**state, "optimizer": optimizer.state_dict()}, content)
    write_whole(path, content.getvalue())


def _load(stage: Stage, optimizer: torch.optim.Optimizer, path: Path) -> tuple[int, float]:
    """Load the state file where there is one, and return steps and seconds so far. Nothing is unpickled but tensors."""
    if not path.exists():
        return 0, 0.0
    what_to_do = "remove it to begin anew, or name another directory with --run"
    with foreign(CheckpointError, f"{path} cannot be read ({what_to_do})"):
        state = torch.load(path, weights_only=True)
        if state["settings"] != _text(stage):
            raise CheckpointError(
                f"{path} is of a training with other settings ({state['settings']}; now {_text(stage)}): {what_to_do}"
            )
        for name, module in stage.modules.items():
            module.load_state_dict(state["modules"][name])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"]), float(state["seconds"])


def _text(stage: Stage) -> str:
    """Return a stage's settings as text."""
    settings = {"batch": stage.batch_size, "learning rate": stage.learning_rate, **stage.settings}
    return ", ".join(f"{name} {value}" for name, value in settings.items())
