"""Compute before loading what memory the processes take that serve one model, some of it once and some in each."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from whet.errors import OptionError
from whet.measure.memory import free_bytes
from whet.models.families import Outline, outline_of
from whet.server.options import EngineOptions
from whet.server.sizing import default_memory
from whet.ui.figures import num_bytes

PROGRAM_BYTES = 320 * 2**20
"""What a serving process takes for itself: interpreter, PyTorch, tokenizer, buffers. Libraries' code is not counted."""


@dataclass(frozen=True)
class Footprint:
    """Hold the memory of processes that serve one model with the same options.

    Attributes:
        shared_bytes: The memory that all processes map and that exists once: weights, if they are shared.
        private_bytes: The memory of each process: state of sequences, logits, the program, and weights unless shared.
        num_processes: How many processes there are.
    """

    shared_bytes: int
    private_bytes: int
    num_processes: int = 1

    @property
    def total_bytes(self) -> int:
        return self.shared_bytes + self.num_processes * self.private_bytes

    def check_fits(self) -> None:
        """Raise OptionError, with what to do, if the free memory of the machine or container does not hold it all."""
        free = free_bytes()
        if self.total_bytes <= free:
            return
        once = f"{num_bytes(self.shared_bytes)} once and " if self.shared_bytes else ""
        fitting = max(0, (free - self.shared_bytes) // self.private_bytes)
        advice = f"take at most {fitting}" if fitting else "take fewer bits (weights int8 or int4) or a smaller model"
        raise OptionError(
            f"{self.num_processes} processes need {num_bytes(self.total_bytes)} of memory ({once}"
            f"{num_bytes(self.private_bytes)} each), and {num_bytes(free)} are free: {advice}, or give each less "
            "memory for sequences (memory)"
        )


def footprint(
    directory: Path | str, options: EngineOptions, *, draft: Path | str | None = None, num_processes: int = 1
) -> Footprint:
    """Return what processes take that serve a model's directory. The weights are not read.

    The state of sequences takes `memory` of the options in each. By default, the processes together take as much as one
    would: see `memory_for`.

    Args:
        draft: The directory of a smaller model that drafts tokens.

    Raises:
        TargetError: A directory holds no model that can be run.
        OptionError: An option does not fit the model.
    """
    outlines = [outline_of(directory, options)]
    if draft is not None:
        outlines.append(outline_of(draft, replace(options, max_model_len=None)))
    weights = sum(one.weight_bytes for one in outlines)
    private = PROGRAM_BYTES + memory_for(options, num_processes) + sum(_logits_bytes(one, options) for one in outlines)
    if options.shared_weights is None:
        return Footprint(0, private + weights, num_processes)
    return Footprint(weights, private, num_processes)


def memory_for(options: EngineOptions, num_processes: int) -> int:
    """Return the bytes for the state of sequences in each of several processes.

    It is `memory` of the options if that is set. By default, all have a quarter of the free memory together.
    """
    return default_memory() // num_processes if options.memory is None else options.memory


def footprint_in_child(
    directory: str, options: Mapping[str, Any], draft: str | None, num_processes: int
) -> dict[str, int]:
    """Return the fields of a footprint: for `run_isolated`, in processes that do without PyTorch.

    `options` are the fields of EngineOptions.
    """
    return asdict(footprint(directory, EngineOptions(**options), draft=draft, num_processes=num_processes))


def _logits_bytes(model: Outline, options: EngineOptions) -> int:
    """Return the bytes of the logits in the largest step, float32: those of each sequence, and of its drafts."""
    rows = options.max_num_seqs * (1 if options.speculation == "off" else 1 + options.num_draft_tokens)
    return 4 * rows * model.vocab_size
