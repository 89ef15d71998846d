"""Read and write recipe.toml: an ordered list of techniques with their options, and the evidence that they pay.

A recipe is written by whet, read by people and by `whet apply`, and compared with diff.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ValidationError

from whet.core.recipe_file import file_of, parsed
from whet.errors import RecipeError
from whet.files import write_whole

_APPLY = "whet apply recipe.toml TARGET --out DIR"
_STREAM = "whet stream DIR, where DIR is the directory of this file"
_PREPARE = (
    "model, optimizer, loader = whet.prepare(model, optimizer, loader, recipe='recipe.toml'), "
    "or: whet run --recipe recipe.toml -- python train.py"
)


class Step(BaseModel, frozen=True, extra="forbid"):
    technique: str
    options: dict[str, bool | int | float | str] = {}

    @property
    def _identity(self) -> tuple[str, frozenset[tuple[str, str, bool | int | float | str]]]:
        """Return the technique and its options with their types: true and 1 are two values, as they are in TOML."""
        return self.technique, frozenset((name, type(value).__name__, value) for name, value in self.options.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={_plain(value)}" for key, value in self.options.items())
        return f"{self.technique}({inside})" if inside else self.technique


class Evidence(BaseModel, extra="forbid"):
    """Hold what was measured when the recipe was found. Times are in milliseconds, sizes in bytes."""

    verdict: str
    objective: str
    speedup: float
    speedup_ci95: tuple[float, float]
    baseline_latency_ms: float
    latency_ms: float
    num_pairs: int
    quality_name: str
    quality_baseline: float
    quality: float
    max_drop: float
    size_bytes_baseline: int
    size_bytes: int
    peak_bytes_baseline: int
    peak_bytes: int
    share_of_limit: float | None = None


class Recipe(BaseModel, extra="forbid"):
    """Hold ordered techniques, the machine and versions that they were proved on, and the proof.

    Attributes:
        kind: What the techniques are for: calls of a model, a training loop, or a stream.
        target: The name of the target; "" where it is not known.
        model: A digest of the names, shapes and dtypes of the model's weights; "" where it is not known.
        fingerprint: The machine's fingerprint.
        machine: The machine's facts.
        versions: The versions of the libraries.
        evidence: What was measured; None where nothing was.
        steps: The techniques, in order.
    """

    format: int = 1
    kind: Literal["inference", "training", "stream"] = "inference"
    target: str = ""
    model: str = ""
    fingerprint: str = ""
    machine: dict[str, bool | int | float | str | list[str]] = {}
    versions: dict[str, str] = {}
    evidence: Evidence | None = None
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return " + ".join(map(str, self.steps)) or "original"

    def __iter__(self) -> Iterator[Step]:  # type: ignore[override]
        return iter(self.steps)

    @property
    def key(self) -> tuple[Step, ...]:
        """Return the steps in order, which identify the recipe, whatever else it holds."""
        return self.steps

    def checked_for(self, kind: Literal["inference", "training"]) -> "Recipe":
        """Return this recipe if it is of a kind, since techniques for calls and for training share some names.

        Raises:
            RecipeError: It is of another kind.
        """
        if self.kind == kind or not self.steps:
            return self
        if self.kind == "stream":
            raise RecipeError("this recipe is for a stream: run the directory that holds it, as whet stream DIR")
        if kind == "inference":
            raise RecipeError(
                "this recipe is for a training loop, not for calls of a model: apply it in the loop with "
                "whet.prepare(model, optimizer, loader, recipe=...)"
            )
        raise RecipeError(
            "this recipe is for calls of a model, not for a training loop: replay it with whet apply, or tune the "
            "training (whet tune FILE.py:FUNCTION that returns a TrainingWorkload)"
        )

    def write(self, path: Path) -> None:
        """Write the recipe as TOML, whole or not at all."""
        data: dict[str, Any] = self.model_dump(exclude_none=True, mode="json")
        if self.kind == "inference":
            del data["kind"]  # as earlier versions wrote it, and can read it
        how = {"inference": _APPLY, "training": _PREPARE, "stream": _STREAM}[self.kind]
        write_whole(path, f"# Written by whet. Apply with: {how}\n{tomli_w.dumps(data)}")

    @classmethod
    def read(cls, path: Path) -> "Recipe":
        """Read and check a recipe.

        Args:
            path: The file, or the directory of a tuning run, which holds it.

        Raises:
            RecipeError: It is missing or damaged; the message says what is wrong.
        """
        data = parsed(path)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise RecipeError(
                f"{file_of(path)} is not a valid recipe: {where}: {first['msg']}; give one that `whet tune` wrote"
            ) from error


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
