"""Define the record of a trial: what its process found, and what the search adds."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, model_validator

from whet.core.recipe import Recipe, Step
from whet.techniques.costs.memory import StepMemory
from whet.techniques.proof.gradients import GradientProof
from whet.techniques.proof.updates import UpdateProof

Status = Literal["done", "rejected", "failed", "refused", "running", "stopped"]
"""A trial was "stopped" if the time budget was used up while it ran."""

RejectedFor = Literal["quality", "memory", "outputs", "slowdown"]
"""Outputs are rejected if they hold NaN or infinity where the original's do not, or the other way round, or if they
differ for inputs that were not seen."""


class Agreement(BaseModel, frozen=True):
    """Describe how closely a variant's worst output agrees with the original's on the calibration batches.

    Attributes:
        relative_error: Norm of the difference over norm of the original. Places where both hold the same NaN or
            infinity are left out; None where only one of them does.
        distance: What may not exceed `max_drop` where a workload has no quality: half the squared error over the
            squared spread of the original's values, which is half the normalised mean squared error. For values around
            zero that is 1 - cosine, but it also detects an offset or a scale. For integers, the share that differs. A
            column whose own distance is more than ten times as large counts with a tenth of it.
        cosine: The cosine of all values as one vector.
        top1: Share of rows whose largest entry is at the same place; None where no output has rows of two or more
            floats.
        column: The column that decides the distance, with its output and axis, in words; "" where a whole output does.
    """

    relative_error: float | None
    distance: float | None = None
    cosine: float
    top1: float | None = None
    column: str = ""


class QualityChange(BaseModel, frozen=True):
    """Describe how a variant's score differs from the original's on the same samples, as fractions of the original's.

    Attributes:
        drop: The difference on these samples, which is exact.
        ci95: The 95 % interval of the drop on samples like these.
        is_shown: Whether the whole interval lies within the drop that is allowed.
        needed_samples: About how many samples would show that, if they differ as often as these; None where none would.
    """

    drop: float
    ci95: tuple[float, float]
    num_samples: int
    num_worse: int
    num_better: int
    is_shown: bool
    needed_samples: int | None = None


class Timing(BaseModel, frozen=True):
    """Hold the timing of a variant beside the original, in interleaved blocks of one process.

    Attributes:
        latency_ms: Median of the variant, in milliseconds.
        baseline_latency_ms: Median of the original, in milliseconds.
        speedup: The original's time over the variant's.
        busy: What disturbed the timing, where the machine was busy.
    """

    latency_ms: float
    baseline_latency_ms: float
    speedup: float
    speedup_ci95: tuple[float, float]
    busy: str = ""


class Built(BaseModel, frozen=True):
    """Describe a variant once it is built, saved and loaded back.

    Attributes:
        notes: What its techniques report.
        libraries: The libraries that whet.load needs for the artefact's custom operators.
        fixed_batch: The only batch size that it takes; None for any.
    """

    notes: tuple[str, ...] = ()
    size_bytes: int | None = None
    libraries: tuple[str, ...] = ()
    fixed_batch: int | None = None


class Judgement(BaseModel, frozen=True):
    """Tell whether a variant keeps the quality.

    Attributes:
        status: "done" where it does, "rejected" where it does not.
        quality: The variant's score, or its agreement with the original; None without finite outputs.
        drop: Fraction of the original's quality that is lost; negative is better; None without finite outputs.
        change: The drop with its interval, where the quality is scored sample by sample.
    """

    status: Status
    reason: str = ""
    rejected_for: RejectedFor | None = None
    quality: float | None = None
    drop: float | None = None
    change: QualityChange | None = None


class TrainingEvidence(BaseModel, frozen=True):
    """Hold what was found out about a changed training run, beside its times.

    Attributes:
        gradients: How its gradients compare with those in float64.
        updates: How its updates compare with those of the original's optimiser in float64; None where the optimiser is
            another one.
        throughput_per_s: Samples or tokens per second.
        set_up_s: Seconds that a run spends once on the recipe: techniques are applied, and code is compiled. They are
            part of no step's time. None in results of earlier versions.
        joules_per_step: Energy of a step, of the whole package; None where no counter can be read.
    """

    gradients: GradientProof | None = None
    updates: UpdateProof | None = None
    memory: StepMemory | None = None
    throughput_per_s: float = 0.0
    set_up_s: float | None = None
    joules_per_step: float | None = None


class StreamFigures(BaseModel, frozen=True):
    """Hold the quality of a stream's answers over clips, beside their structural similarity.

    Attributes:
        psnr_db: Peak signal-to-noise ratio to the truth, in dB, at most 100.
        ssim: Structural similarity to the truth, at most 1.
        sharpness: The variance of the answers' Laplacian over that of the truth.
        flicker: How much more the answers change from frame to frame than the truth does, on the scale from 0 to 1.
        warp_error: The root mean square error of an answer that the input's flow predicts from the one before, less
            that of the truth, on the scale from 0 to 1; 0 for frames of less than 16 pixels a side.
        accuracy: The mean of the clips' own scores; None without any.
        is_same: Whether the quality is the original's, within what is allowed.
    """

    psnr_db: float
    ssim: float
    sharpness: float
    flicker: float
    warp_error: float
    accuracy: float | None = None
    is_same: bool = True


class TrialOutcome(Built, Judgement, frozen=True):
    """Report what the process of a trial found.

    Latencies and speedups are screening figures: variant and original share one process.

    Attributes:
        build_s: Seconds of conversion, calibration, compilation and saving.
        latency_ms, baseline_latency_ms, speedup, speedup_ci95, busy: The fields of Timing; None where nothing was
            timed.
    """

    build_s: float | None = None
    agreement: Agreement | None = None
    latency_ms: float | None = None
    baseline_latency_ms: float | None = None
    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    busy: str = ""
    training: TrainingEvidence | None = None
    stream: StreamFigures | None = None


class TrialRecord(TrialOutcome, frozen=True):
    """Record one trial.

    Attributes:
        predicted: The highest possible speedup, as predicted before the trial.
        peak_bytes: Peak memory of a process that serves the variant, where it was measured.
        share_of_limit: The least time that the machine's limits allow over the time measured.
        seconds: Duration of the whole trial.
        ran_on: The node or the process that made the trial, where several share the search; "" elsewhere.
    """

    number: int
    steps: tuple[Step, ...]
    predicted: float | None = None
    peak_bytes: int | None = None
    share_of_limit: float | None = None
    seconds: float = 0.0
    fingerprint: str = ""
    ran_on: str = ""

    @model_validator(mode="before")
    @classmethod
    def _with_cause(cls, data: Any) -> Any:
        """Add the cause of a rejection to records of earlier versions, which lack it.

        Memory is measured after quality, so a rejected record with a figure for memory was rejected for memory.
        """
        if not isinstance(data, Mapping) or data.get("status") != "rejected" or data.get("rejected_for") is not None:
            return data
        if data.get("peak_bytes") is not None:
            return {**data, "rejected_for": "memory"}
        return {**data, "rejected_for": "outputs" if data.get("drop") is None else "quality"}

    @property
    def key(self) -> tuple[Step, ...]:
        """Return the steps, which identify the recipe."""
        return self.steps

    @property
    def label(self) -> str:
        return str(Recipe(steps=self.steps))
