"""Define what a run of a script is asked for, and what it answers: JSON files in a directory of the run.

A file holds the answer whole or not at all, so that a script that dies half-way leaves none.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whet.core.recipe import Step
from whet.files import write_whole
from whet.techniques.costs.memory import StepMemory
from whet.techniques.proof.updates import UpdateProof

VARIABLE = "WHET_SCRIPT_REQUEST"  # the environment variable with the directory
SEED_VARIABLE = "WHET_SCRIPT_SEED"
STARTER_VARIABLE = "WHET_SCRIPT_STARTER"  # whet's process id, where its child is a launcher, which trains nothing
REQUEST, RECORD, PROBLEM, TRAINER = "request.json", "record.json", "problem.txt", "trainer.pid"
GRADIENTS = "gradients.safetensors"


class ScriptRequest(BaseModel, frozen=True):
    """Tell the script's process what to do.

    Attributes:
        steps: The recipe to apply; empty for the script as it is.
        fingerprint: The machine on which the recipe was proved; "" where that is not known.
        is_launched: Whether a launcher starts the script, perhaps in several processes.
        is_bounded: Whether the process ends after `num_steps` steps. Otherwise the script runs to its own end.
        num_steps: The most optimiser steps.
        enough_s: Seconds after which seven steps are enough.
        limit_s: Seconds after which the process ends at the end of a step.
        seed: Seeds all generators before the script begins.
        shift: Is added to every seed that the script sets, so that it trains another run.
        num_threads: PyTorch's threads from the beginning; 0 leaves them.
        is_proof: Whether dropout is turned off, and gradients and updates of the first steps are recorded.
        moved: The part of each parameter by which it is moved, up or down by chance, before the first step.
        move: Which of several such moves is made: a seed.
        is_watched: Whether the phases of the steps are timed.
        writable: Directories that hold the run's own files; empty where the script may write anywhere.
        protected: The directory that holds the user's own, of which the run has a copy.
    """

    steps: tuple[Step, ...] = ()
    fingerprint: str = ""
    is_launched: bool = False
    is_bounded: bool = True
    num_steps: int = 0
    enough_s: float = 5.0
    limit_s: float = 180.0
    seed: int = 0
    shift: int = 0
    num_threads: int = 0
    is_proof: bool = False
    moved: float = 0.0
    move: int = 0
    is_watched: bool = False
    writable: tuple[str, ...] = ()
    protected: str = ""

    def write(self, directory: Path) -> None:
        write_whole(directory / REQUEST, self.model_dump_json())

    @classmethod
    def read(cls, directory: Path) -> "ScriptRequest":
        return cls.model_validate_json((directory / REQUEST).read_text(encoding="utf-8"))


class ScriptRecord(BaseModel, ser_json_inf_nan="constants"):
    """Hold what a bounded run of a script showed.

    Attributes:
        seconds: The time of each step but the first.
        losses: The loss of each step from the first on; None where backward was called on no single number.
        learning_rates: The learning rates of the optimiser's groups in each step.
        blocks: The load beside blocks of steps, as StepTimes has them.
        peak_bytes: The peak resident memory of the process.
        cuda_peak_bytes: The peak of the GPU's allocator; None without a GPU.
        memory: What the memory of a step is made of, above what the process held before the script began; None in a run
            whose loop was not found.
        model: The class of the model that trains.
        num_parameters: How many numbers the optimiser updates.
        optimizer: The class of the optimiser.
        applicable: The techniques that can be applied here, with their options.
        refused: Why others cannot, by the technique's name.
        shares: The share of a step in each phase, where the run was watched.
        within_documents: The share of attention's products in the first step that is left where each document of
            packed rows is computed by itself; None where that was not seen.
        updates: How the first updates compare with float64, where the run is a proof.
        notes: What the techniques want to be said.
        world_size: How many processes train together.
        num_threads: PyTorch's threads of the process.
    """

    seconds: list[float]
    losses: list[float | None]
    learning_rates: list[list[float]] = []
    blocks: list[dict[str, Any]] = []
    peak_bytes: int = 0
    cuda_peak_bytes: int | None = None
    memory: StepMemory | None = None
    model: str = ""
    num_parameters: int = 0
    optimizer: str = ""
    applicable: list[Step] = []
    refused: dict[str, str] = {}
    shares: dict[str, float] = {}
    within_documents: float | None = None
    updates: UpdateProof | None = None
    notes: tuple[str, ...] = ()
    world_size: int = 1
    num_threads: int = 1

    def write(self, directory: Path) -> None:
        write_whole(directory / RECORD, json.dumps(self.model_dump(mode="json")))

    @classmethod
    def read(cls, directory: Path) -> "ScriptRecord | None":
        """Return what `write` wrote; None where the run gave no record."""
        if not cls.is_in(directory):
            return None
        return cls.model_validate_json((directory / RECORD).read_text(encoding="utf-8"))

    @staticmethod
    def is_in(directory: Path) -> bool:
        return (directory / RECORD).is_file()
