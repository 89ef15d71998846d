"""Run a training from its set-up to its end: steps, scores, checkpoints and figures."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whet.errors import ModelError, OptionError, WhetError
from whet.files import usable_directory
from whet.parallel.division import Division
from whet.parallel.joining import failing_together
from whet.parallel.ranks import Ranks
from whet.scripts.monitor.monitor import Monitor
from whet.techniques.mechanisms.evaluating import evaluating
from whet.techniques.mechanisms.later_notes import NUM_STEPS
from whet.techniques.proof.divergence import LossWatch
from whet.trainer.checkpoints import Checkpoints, RunLock
from whet.trainer.export import write_model
from whet.trainer.memory_parts import check_memory, memory_told
from whet.trainer.metrics_log import Line, MetricsLog
from whet.trainer.pruning import gradual_pruning
from whet.trainer.result import TrainResult
from whet.trainer.setup import SetUp, check_same
from whet.trainer.state import RUN, restore, state_of
from whet.trainer.stops import Stop, stopping
from whet.trainer.together import together
from whet.ui.figures import percent

CHECKPOINTS, MODEL = "checkpoints", "model"


def run(setup: SetUp, *, resume: bool, say: Callable[[str], None], division: Division | None = None) -> TrainResult:
    """Train to the end of the run, or until a signal asks for its end.

    Args:
        resume: Whether to go on from the newest whole checkpoint of the directory.
        division: How several processes share the work, each of which calls this.

    Raises:
        OptionError: The directory holds a run and resume is false, or the other way round.
        ModelError: The loss is not finite, or diverges.
        WhetError: Something cannot be read or written, or memory is out.
    """
    division = division or Division.alone()
    ranks = division.ranks
    setup = setup.divided(division.rows, division.device)
    with ExitStack() as open_:
        # The lock is the run's: the first process holds it for all.
        directory, lock = ranks.first_does("the run's directory", lambda: _locked(setup)) or (setup.config.out, None)
        if lock is not None:
            open_.enter_context(lock)
        stop = open_.enter_context(stopping())
        open_.enter_context(closing(setup.data))
        sections = setup.config.checkpoints
        checkpoints = open_.enter_context(
            Checkpoints(directory / CHECKPOINTS, keep=sections.keep, keep_every=sections.keep_every, ranks=ranks)
        )
        found = _found(checkpoints, directory, ranks, resume=resume, say=say)
        open_.enter_context(failing_together(ranks))
        return _Run(setup, checkpoints, found, stop, say, division).go()


def _locked(setup: SetUp) -> tuple[Path, RunLock]:
    directory = usable_directory(setup.config.out)
    return directory, RunLock(directory)


def _found(
    checkpoints: Checkpoints, directory: Path, ranks: Ranks, *, resume: bool, say: Callable[[str], None]
) -> Path | None:
    """Return the checkpoint to go on from; None to begin."""
    found = ranks.first_does("the newest checkpoint", checkpoints.newest)
    for path, why in found.skipped if found is not None else ():
        say(f"{path.name} is damaged and left out: {why}")
    name = ranks.of_first("the checkpoint to go on from", None if found is None else found.path.name)
    if name is not None and not resume:
        raise OptionError(f"{directory} holds a run already; go on with it by --resume, or choose another out")
    if name is None and resume:
        raise OptionError(f"{directory} holds no whole checkpoint to go on from; leave out --resume")
    return None if name is None else checkpoints.directory / name


class _Run:
    def __init__(
        self,
        setup: SetUp,
        checkpoints: Checkpoints,
        found: Path | None,
        stop: Stop,
        say: Callable[[str], None],
        division: Division,
    ) -> None:
        self._setup, self._config, self._checkpoints = setup, setup.config, checkpoints
        self._stop, self._say, self._found, self._division = stop, say, found, division
        self._is_over, self._stopped_by = False, ""
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
        state = None if self._found is None else self._checkpoints.load(self._found)
        if state is not None:
            kept = state.values[RUN]
            check_same(kept["identity"], self._setup)
            self._step, self._tokens = kept["step"], kept["tokens"]
            self._seconds, self._watch = kept["seconds"], self._watching(kept["largest_loss"])
            self._scores, self._losses = kept.get("scores", {}), list(kept.get("losses", []))
            self._saved = self._step
        with memory_told("to set the training up", self._setup):
            check_memory(self._setup)
            prepared, self._together = together(self._setup, self._setup.workload(self._step), self._division)
            self._pruning = gradual_pruning(config, prepared.trainer.model)
        self._trainer = prepared.trainer
        self._prepared, self._notes = prepared, list(self._setup.notes)
        if state is not None:
            self._notes += restore(self._trainer, state, self._division, self._pruning)
            self._say(f"going on after step {self._step} of {config.steps}")
        for note in self._notes:
            self._say(note)
        begin = self._step
        is_first = self._division.ranks.is_first
        journal = MetricsLog(
            config.out if is_first else None,
            steps=config.steps,
            begin=begin,
            tensorboard=config.log.tensorboard,
            say=self._say,
        )
        port = config.log.port if is_first else None
        monitor = Monitor(
            config.out.name,
            port=port,
            show=False,
            watch=not self._division.is_alone,  # how long each waits for others tells which one is late
            share=1 / self._division.degrees.data,
        )
        with closing(journal), monitor:
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
            self._division.ranks.at(f"in step {self._step + 1}")
            with memory_told(f"in step {self._step + 1}", self._setup, self._trainer.optimizer):
                step_began = time.perf_counter()
                batches = self._next_batches()
                self._lr = float(self._trainer.optimizer.param_groups[0]["lr"])  # the step's end sets the next one's
                loss = self._together.communication.step_on(batches)
                is_plain = not self._together.communication.is_watched
                self._pure_s += (time.perf_counter() - step_began) * is_plain
                tokens = self._together.tokens(batches)
            self._step += 1
            if self._pruning is not None:
                self._pruning.after_step(self._step)
            self._pure_tokens += tokens * is_plain
            self._tokens += tokens
            line_tokens += tokens
            self._check(loss)
            self._losses.append(loss)
            if self._step == first + NUM_STEPS:
                self._tell()
            self._monitor.step(config.batch.global_batch_size, tokens)
            now = time.monotonic()
            self._seconds = before + now - began
            self._is_over = self._together.agreed_end(self._stop, is_over=self._is_last())
            self._stopped_by = self._stop.name
            is_scored = self._step % config.evaluation.eval_interval == 0 or self._is_over
            if is_scored or self._ends() or self._step % config.log.log_interval == 0:
                rate = line_tokens / max(now - line_began, 1e-9)
                line = self._line(rate, scores=is_scored)
                with self._saving():
                    self._division.ranks.first_does("the log", partial(self._journal.write, line))
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
            return self._together.next_batches()

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
        """Say what was found out so far, by the techniques and of what the processes send."""
        found = (*self._prepared.notes, *self._together.communication.warnings())
        self._note(note for note in found if note not in self._notes)

    def _note(self, notes: Iterable[str]) -> None:
        for note in notes:
            self._notes.append(note)
            self._say(note)

    def _ends(self) -> bool:
        """Return whether the run ends with the latest step.

        Of several processes, all end with the same step: a signal that comes after they agreed counts in the next one.
        """
        return self._is_over or bool(self._stop.name if self._division.is_alone else self._stopped_by)

    def _is_last(self) -> bool:
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

    def _line(self, rate: float, *, scores: bool) -> Line:
        self._mean = sum(self._losses) / len(self._losses)
        self._losses = []
        norm = self._trainer.gradient_norm
        sample = None
        if scores:
            self._scores, sample = self._scored()
        return Line(
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

    @torch.no_grad()
    def _scored(self) -> tuple[dict[str, float], str | None]:
        """Return the held-out scores and a sample, in evaluation mode."""
        section = self._config.evaluation
        with evaluating(self._trainer.model):
            batches = self._setup.held_out
            with memory_told("while held-out rows were scored", self._setup, self._trainer.optimizer):
                found = self._together.scores(batches) if batches else {}
            sample = None
            if section.prompt is not None:
                ids = self._setup.data.encode(section.prompt)
                drawn = self._together.go_on(
                    ids,
                    num_tokens=section.num_sampled,
                    temperature=section.temperature,
                    seed=self._config.seed,
                )
                sample = section.prompt + self._setup.data.decode(drawn)
        return found, sample

    def _save(self, *, wait: bool) -> None:
        """Save the state, unless its weights are not finite: a sound checkpoint must not give way to such a one."""
        if not self._together.is_finite():
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
        saves_frozen = self._config.lora is None
        state = state_of(self._trainer, values, self._division, self._pruning, saves_frozen=saves_frozen)
        self._checkpoints.save(self._step, state, wait=wait)
        self._saved = self._step

    def _result(self, ended: str) -> TrainResult:
        config = self._config
        self._tell()
        self._note(self._together.communication.notes())
        model = None
        if not ended or ended == "max_minutes":
            if self._pruning is not None:
                self._pruning.masks.make_permanent()
                sparsity = percent(self._pruning.masks.sparsity, decimals=1)
                self._note([f"pruned: {sparsity} of the matrices' weights are zero"])
            weights = self._together.whole_weights()
            ranks = self._division.ranks
            ranks.first_does("the model", lambda: write_model(self._setup, weights, config.out / MODEL))
            model = config.out / MODEL
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
