"""Run a training from its set-up to its end: steps, scores, checkpoints and figures."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.errors import ModelError, OptionError, RecipeError, WhetError
from whet.files import usable_directory
from whet.measure.machine import describe
from whet.scripts.monitor.monitor import Monitor
from whet.techniques.applied import still_to_apply
from whet.techniques.mechanisms.evaluating import evaluating
from whet.techniques.mechanisms.later_notes import NUM_STEPS
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.prepared_trainer import PreparedTrainer, updates_plainly
from whet.techniques.proof.divergence import LossWatch
from whet.techniques.training import TRAINING_TABLE
from whet.trainer.checkpoints import Checkpoints, Found, RunLock
from whet.trainer.export import write_model
from whet.trainer.memory_parts import check_memory, memory_told
from whet.trainer.metrics_log import Line, MetricsLog
from whet.trainer.pruning import gradual_pruning
from whet.trainer.setup import SetUp, check_same
from whet.trainer.state import RUN, restore, state_of
from whet.trainer.stops import Stop, stopping
from whet.ui.figures import percent

CHECKPOINTS, MODEL = "checkpoints", "model"


@dataclass
class TrainResult:
    """Hold what came of a run.

    Attributes:
        directory: The directory of the run.
        model: The Hugging Face directory of what was trained; None where the run was stopped before its end.
        step: The optimiser steps that were made, over all starts.
        steps: The steps of the whole run.
        tokens: The tokens that were learnt from.
        seconds: The seconds of training, over all starts.
        loss: The mean loss of the latest steps.
        held_out_loss: The latest held-out loss; None where nothing is held out.
        tokens_per_s: Tokens a second in the steps of this start, without scores and checkpoints.
        scores: The latest held-out scores by name; of a classification, accuracy and macro_f1 too.
        task: What was trained: "language" or "classification".
        stopped_by: The signal that stopped it, or "max_minutes"; "" where it came to its end.
        exit_code: 0, or 128 plus the signal's number.
        notes: What should be known.
    """

    directory: Path
    model: Path | None
    step: int
    steps: int
    tokens: int
    seconds: float
    loss: float | None
    held_out_loss: float | None
    tokens_per_s: float | None
    stopped_by: str = ""
    exit_code: int = 0
    notes: list[str] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    task: str = "language"


def run(setup: SetUp, *, resume: bool, say: Callable[[str], None]) -> TrainResult:
    """Train to the end of the run, or until a signal asks for its end.

    Args:
        resume: Whether to go on from the newest whole checkpoint of the directory.

    Raises:
        OptionError: The directory holds a run and resume is false, or the other way round.
        ModelError: The loss is not finite, or diverges.
        WhetError: Something cannot be read or written, or memory is out.
    """
    directory = usable_directory(setup.config.out)
    with RunLock(directory), stopping() as stop, closing(setup.data):
        sections = setup.config.checkpoints
        with Checkpoints(directory / CHECKPOINTS, keep=sections.keep, keep_every=sections.keep_every) as checkpoints:
            found = _found(checkpoints, directory, resume=resume, say=say)
            return _Run(setup, checkpoints, found, stop, say).go()


def _found(checkpoints: Checkpoints, directory: Path, *, resume: bool, say: Callable[[str], None]) -> Found | None:
    """Return the checkpoint to go on from; None to begin."""
    found = checkpoints.newest()
    for path, why in found.skipped if found is not None else ():
        say(f"{path.name} is damaged and left out: {why}")
    if found is not None and not resume:
        raise OptionError(f"{directory} holds a run already; go on with it by --resume, or choose another out")
    if found is None and resume:
        raise OptionError(f"{directory} holds no whole checkpoint to go on from; leave out --resume")
    return found


class _Run:
    def __init__(
        self, setup: SetUp, checkpoints: Checkpoints, found: Found | None, stop: Stop, say: Callable[[str], None]
    ) -> None:
        self._setup, self._config, self._checkpoints = setup, setup.config, checkpoints
        self._stop, self._say, self._found = stop, say, found
        self._step = self._tokens = self._saved = 0
        self._seconds = 0.0
        self._lr = 0.0  # of the latest step
        self._watch = self._watching()
        self._scores: dict[str, float] = {}
        self._losses: list[float] = []  # of the steps since the latest line
        self._mean: float | None = None
        self._pure_s, self._pure_tokens = 0.0, 0

    def go(self) -> TrainResult:
        config = self._config
        state = None if self._found is None else self._checkpoints.load(self._found.path)
        if state is not None:
            kept = state.values[RUN]
            check_same(kept["identity"], self._setup)
            self._step, self._tokens = kept["step"], kept["tokens"]
            self._seconds, self._watch = kept["seconds"], self._watching(kept["largest_loss"])
            self._scores, self._losses = kept.get("scores", {}), list(kept.get("losses", []))
            self._saved = self._step
        with memory_told("to set the training up", self._setup):
            check_memory(self._setup)
            workload = self._setup.workload(self._step)
            prepared = PreparedTrainer(workload, _fitting(workload, self._setup.steps))
            self._pruning = gradual_pruning(config, workload.model)
        self._trainer = prepared.trainer
        if state is not None:
            restore(self._trainer, state, self._pruning)
            self._say(f"going on after step {self._step} of {config.steps}")
        self._prepared, self._notes = prepared, list(self._setup.notes)
        for note in self._notes:
            self._say(note)
        begin = self._step
        journal = MetricsLog(
            config.out, steps=config.steps, begin=begin, tensorboard=config.log.tensorboard, say=self._say
        )
        with (
            closing(journal),
            Monitor(config.out.name, port=config.log.port, show=False, watch=False) as monitor,
        ):
            self._journal, self._monitor = journal, monitor
            if monitor.url is not None:
                self._say(f"live page: {monitor.url}")
            ended = self._loop()
        return self._result(ended)

    def _watching(self, largest: float = 0.0) -> LossWatch:
        section = self._config.divergence
        floor = math.log(max(2, self._setup.model.num_outcomes))
        return LossWatch(factor=section.factor, patience=section.patience, floor=floor, largest=largest)

    def _loop(self) -> str:
        """Make steps until the end, and return what ended them early; "" where nothing did."""
        config = self._config
        began, before, first = time.monotonic(), self._seconds, self._step
        line_began, line_tokens = began, 0
        while self._step < config.steps:
            with memory_told(f"in step {self._step + 1}", self._setup, self._trainer.optimizer):
                step_began = time.perf_counter()
                batches = self._next_batches()
                self._lr = float(self._trainer.optimizer.param_groups[0]["lr"])  # the step's end sets the next one's
                loss = float(self._trainer.step_on(batches))
                self._pure_s += time.perf_counter() - step_began
                tokens = self._setup.data.tokens_of(batches)
            self._step += 1
            if self._pruning is not None:
                self._pruning.after_step(self._step)
            self._pure_tokens += tokens
            self._tokens += tokens
            line_tokens += tokens
            self._check(loss)
            self._losses.append(loss)
            if self._step == first + NUM_STEPS:
                self._tell()
            self._monitor.step(config.batch.global_batch_size, tokens)
            now = time.monotonic()
            self._seconds = before + now - began
            is_scored = self._step % config.evaluation.eval_interval == 0 or self._is_over()
            if is_scored or self._ends() or self._step % config.log.log_interval == 0:
                rate = line_tokens / max(now - line_began, 1e-9)
                with self._saving():
                    self._write_line(rate, scores=is_scored)
                line_began, line_tokens = time.monotonic(), 0
            ends = self._ends()
            is_due = self._step % config.checkpoints.save_interval == 0 and not self._watch.is_far
            if is_due or ends:
                self._save(wait=ends)
            if ends and self._step < config.steps:
                return self._stop.name or "max_minutes"
        self._checkpoints.wait()
        return ""

    def _next_batches(self) -> list[Any]:
        with self._monitor.data_wait(), self._saving():
            return self._trainer.next_batches()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Save the state of now where a block between two steps fails: reading a batch, or writing the log."""
        try:
            yield
        except WhetError:
            try:
                if self._step > self._saved:
                    self._save(wait=True)
            except WhetError as failed:
                self._say(str(failed))
            raise

    def _tell(self) -> None:
        """Say what the techniques have found out so far."""
        for note in (note for note in self._prepared.notes if note not in self._notes):
            self._notes.append(note)
            self._say(note)

    def _ends(self) -> bool:
        """Return whether the run ends with the latest step."""
        return self._is_over() or bool(self._stop.name)

    def _is_over(self) -> bool:
        """Return whether all steps are made, or the time is up."""
        minutes = self._config.max_minutes
        return self._step == self._config.steps or (minutes is not None and self._seconds >= 60 * minutes)

    def _check(self, loss: float) -> None:
        """Raise ModelError where the latest loss is not finite, or losses stay far above those of the first steps."""
        if why := self._watch.fault(self._step, loss):
            is_far = "; or set divergence.factor = 0, if such losses are sound" if math.isfinite(loss) else ""
            raise self._unsound(why, is_far)

    def _unsound(self, what: str, else_: str = "") -> ModelError:
        """Return the error that ends a training with what it saw, what is kept of it, and what else may help."""
        self._checkpoints.wait()
        rows = self._setup.data.rows_of(self._step - 1)
        shown = ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
        found = self._checkpoints.newest()
        kept = "there is no checkpoint yet" if found is None else f"{found.path} is kept"
        return ModelError(
            f"{what}, on the rows {shown} of the training data; {kept}. Look at these rows, or train with a lower "
            f"optimizer.lr or a lower optimizer.max_norm{else_}"
        )

    def _write_line(self, rate: float, *, scores: bool) -> None:
        self._mean = sum(self._losses) / len(self._losses)
        self._losses = []
        norm = self._trainer.gradient_norm
        sample = None
        if scores:
            self._scores, sample = self._scored()
        self._journal.write(
            Line(
                step=self._step,
                tokens=self._tokens,
                seconds=self._seconds,
                loss=self._mean,
                lr=self._lr,
                gradient_norm=None if norm is None else float(norm),
                tokens_per_s=rate,
                **(self._scores if scores else {}),
                sample=sample,
            )
        )

    @torch.no_grad()
    def _scored(self) -> tuple[dict[str, float], str | None]:
        """Return the held-out scores and a sample, in evaluation mode."""
        section, model = self._config.evaluation, self._trainer.model
        with evaluating(model):
            batches = self._setup.held_out
            with memory_told("while held-out rows were scored", self._setup, self._trainer.optimizer):
                found = self._setup.model.scores(model, batches) if batches else {}
            sample = None
            if section.prompt is not None:
                ids = self._setup.data.encode(section.prompt)
                drawn = self._setup.model.go_on(
                    model,
                    ids,
                    num_tokens=section.num_sampled,
                    temperature=section.temperature,
                    seed=self._config.seed,
                )
                sample = section.prompt + self._setup.data.decode(drawn)
        return found, sample

    def _save(self, *, wait: bool) -> None:
        """Save the state, unless its weights are not finite: a sound checkpoint must not give way to such a one."""
        norms = torch._foreach_norm([p.detach() for p in self._trainer.model.parameters()], math.inf)
        if not all(torch.isfinite(norm) for norm in norms):
            raise self._unsound(f"the weights are not finite after step {self._step}")
        values = {
            "identity": self._setup.identity,
            "step": self._step,
            "tokens": self._tokens,
            "seconds": self._seconds,
            "largest_loss": self._watch.largest,
            "scores": self._scores,
            "losses": self._losses,
        }
        state = state_of(self._trainer, values, self._pruning, saves_frozen=self._config.lora is None)
        self._checkpoints.save(self._step, state, wait=wait)
        self._saved = self._step

    def _result(self, ended: str) -> TrainResult:
        config = self._config
        model = None
        if not ended or ended == "max_minutes":
            if self._pruning is not None:
                self._pruning.masks.make_permanent()
                self._notes.append(
                    f"pruned: {percent(self._pruning.masks.sparsity, decimals=1)} of the matrices' weights are zero"
                )
                self._say(self._notes[-1])
            model = write_model(self._setup, self._trainer.model, config.out / MODEL)
        return TrainResult(
            directory=config.out,
            model=model,
            step=self._step,
            steps=config.steps,
            tokens=self._tokens,
            seconds=self._seconds,
            loss=self._mean,
            held_out_loss=self._scores.get("held_out_loss"),
            tokens_per_s=self._pure_tokens / self._pure_s if self._pure_s else None,
            stopped_by=ended,
            exit_code=self._stop.exit_code,
            notes=self._notes,
            scores=self._scores,
            task=config.task,
        )


def _fitting(workload: TrainingWorkload, steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a recipe that change this training; what it does already is left out.

    Raises:
        RecipeError: A technique does not apply here.
    """
    parts = Parts(workload.model, workload.optimizer(workload.model.parameters()), workload.batches)
    changing, _ = still_to_apply(parts, steps, TRAINING_TABLE, describe())
    plain = updates_plainly(workload)
    for step in steps:
        if TRAINING_TABLE[step.technique].updates_early and not plain:
            raise RecipeError(
                f"{step.technique} updates before all gradients are there, so that they cannot be clipped; leave it "
                "out of the recipe, or set optimizer.max_norm to 0"
            )
    return changing
