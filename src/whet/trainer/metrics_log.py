"""Write the figures of a run: lines of JSON, TensorBoard, and lines for people."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whet.errors import MissingExtra, OutputError
from whet.files import write_whole
from whet.ui.figures import duration

FILE = "log.jsonl"
TENSORBOARD = "tensorboard"
_FIGURES = {
    "loss": "loss {:.4f}",
    "held_out_loss": "held-out {:.4f}",
    "accuracy": "accuracy {:.4f}",
    "macro_f1": "macro F1 {:.4f}",
    "lr": "lr {:.2e}",
    "gradient_norm": "norm {:.2f}",
    "tokens_per_s": "{:,.0f} tokens/s",
}  # what may be known at a moment, as people read it


class Line(BaseModel):
    """Hold the figures of a moment.

    Attributes:
        step: The optimiser steps that have been made.
        tokens: The tokens that had a loss, over the whole run; of a classification, those of its texts.
        seconds: The seconds of training so far, over all starts of the run.
        loss: The mean training loss of the steps since the line before, in nats a token.
        lr: The learning rate of the latest step.
        gradient_norm: The norm of the latest gradients before they were clipped.
        tokens_per_s: Tokens a second since the line before.
        held_out_loss: The held-out loss, where it was scored at this step.
        accuracy: The part of the held-out texts whose label is right, where they were scored; of a classification.
        macro_f1: The mean over the labels of F1, where they were scored; of a classification.
        sample: What the model went on with, where it was asked.
    """

    step: int
    tokens: int
    seconds: float
    loss: float | None = None
    lr: float | None = None
    gradient_norm: float | None = None
    tokens_per_s: float | None = None
    held_out_loss: float | None = None
    accuracy: float | None = None
    macro_f1: float | None = None
    sample: str | None = None

    def words(self, steps: int) -> str:
        """Return the line for people."""
        told = [_FIGURES[name].format(value) for name, value in self.figures().items()]
        return "  ".join([f"step {self.step:>{len(str(steps))}}/{steps}", *told, duration(self.seconds)])

    def figures(self) -> dict[str, float]:
        """Return the figures that are known, by name."""
        return {name: value for name in _FIGURES if (value := getattr(self, name)) is not None}


class MetricsLog:
    """Write the lines of a run. What an earlier start wrote after the step that is gone on from is taken back."""

    def __init__(
        self, directory: Path | None, *, steps: int, begin: int, tensorboard: bool, say: Callable[[str], None]
    ) -> None:
        """Open the journal of a run, which goes on from the step `begin`; without a directory, it keeps nothing.

        Raises:
            OutputError: The file cannot be written.
            MissingExtra: TensorBoard is not installed.
        """
        self._steps, self._say, self._file = steps, say, None
        if directory is None:
            return
        self._path = directory / FILE
        self._board = _board(directory / TENSORBOARD, begin) if tensorboard else None
        kept = [line for line in _lines(self._path) if line.get("step", 0) <= begin] if begin else []
        write_whole(self._path, "".join(json.dumps(line) + "\n" for line in kept))
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror or error}") from error

    def write(self, line: Line) -> None:
        """Write one line.

        Raises:
            OutputError: The disk is full, or the file is gone.
        """
        self._say(line.words(self._steps))
        if line.sample is not None:
            self._say(f"    {line.sample!r}")
        if self._file is None:
            return
        try:
            self._file.write(line.model_dump_json(exclude_none=True) + "\n")
            self._file.flush()
        except OSError as error:
            raise OutputError(
                f"cannot write {self._path}: {error.strerror or error}; free some space and go on with --resume"
            ) from error
        if self._board is not None:
            for name, value in line.figures().items():
                self._board.add_scalar(name, value, line.step)
            self._board.flush()

    def close(self) -> None:
        """Close the files. Where the disk is full, `write` has said so."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        with contextlib.suppress(OSError):
            self._file.close()
        if self._board is not None:
            self._board.close()


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return what an earlier start wrote; a line that was cut off is left out."""
    found = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            found.append(line)
    return found


def _board(directory: Path, begin: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", "train", "log.tensorboard") from error
    return SummaryWriter(str(directory), purge_step=begin + 1)
