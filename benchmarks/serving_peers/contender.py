"""What a contender is: an engine with the benchmark's model in it, that continues one prompt, or many at once.

A contender's file has two functions: `prepare(work, kind)` writes what the engine loads, made from the Hugging Face
directory `work/model`, unless it is there; `start(work, kind)` loads it. Both run in the interpreter of that engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

NUM_THREADS = 2
MODEL = Path("model")  # the Hugging Face directory, below the working directory


@dataclass(frozen=True)
class Request:
    """prompt: token ids; exactly num_tokens are to follow, the most likely each time, whatever they are."""

    prompt: list[int]
    num_tokens: int


@dataclass(frozen=True)
class Timeline:
    """The tokens that followed a prompt, and the seconds from the call up to each of them."""

    tokens: list[int]
    times_s: list[float]


class Contender(Protocol):
    """An engine, loaded."""

    settings: dict[str, Any]
    """What was set, and the engine's version: goes into the report."""

    def generate(self, request: Request) -> Timeline:
        """Continue one prompt with nothing else under way."""

    def serve(self, requests: Sequence[Request]) -> list[list[int]]:
        """Continue all prompts, given at once; returns the tokens of each when all are done."""
