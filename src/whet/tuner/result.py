"""Define the result of tuning: every trial, the finalists and the verdict, written as JSON and shown as a report."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PrivateAttr

from whet.core.artefact import load
from whet.core.artefact.runtime import MODEL, RESULT
from whet.core.recipe import Recipe, Step
from whet.core.recipe_file import FILE as RECIPE
from whet.errors import ArtefactError
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.proof.loss_proof import LossProof
from whet.tuner.goal import Objective
from whet.tuner.kind_options import PLAN_TECHNIQUES, KindWord
from whet.tuner.records import Agreement, QualityChange, StreamFigures, TrainingEvidence, TrialRecord
from whet.ui.notebook import Shown

FILE = RESULT

Word = Literal["gain", "no-gain", "inconclusive", "failed"]
"""A verdict is "inconclusive" if the machine was too busy or the time too short, "failed" if nothing was measured."""
NO_VERDICT = "No verdict: "  # begins the sentence of a run whose measurements do not count


class MeasuredVariant(BaseModel):
    """Describe one variant as measured from its artefact, in its own processes.

    Attributes:
        steps: The recipe; empty for the original.
        number: The number of its trial; None for the original.
        latency_ms: Median latency of one batch, in milliseconds.
        beside_ms: The original's latency beside a variant that was only screened. Only this one compares with its
            latency.
        throughput_per_s: Samples per second.
        peak_bytes: Peak memory of the whole process, Python and libraries included; 0 where it was not measured.
        live_tensor_bytes: Bytes of torch's tensors after the last call. The weights of other runtimes are not included.
        cuda_peak_bytes: The CUDA allocator's peak; None without a GPU.
        quality: The score; None without a quality.
        change: The drop in quality with its interval, where it is scored sample by sample.
        share_of_limit: The least time that the machine's limits allow over the time measured.
        process_latencies_ms: The median of each process, in order.
        speedup: The original's time over the variant's.
        p_value: The p-value of the comparison with the original.
        noise: The ratio that as many pairs of the original with itself could show by chance.
        fixed_batch: The only batch size that it takes; None for any.
        verdict: Whether it is faster than the original: "pass", "fail" or "inconclusive"; "screened" outside the
            finals.
        load: What else the machine did meanwhile, as measure.load.Load.
        doubt: Why its times prove nothing, where the verdict is inconclusive for such a reason.
        stream: The quality of a stream's answers on clips that the search has not seen; None for others.
        p99_ms: The 99th percentile of a frame's time, where a stream has to keep one; None for others.
        budget: Whether a stream keeps the time of a frame: "held", "missed" or "inconclusive"; "" where none is asked.
        is_smaller: Whether the peak of each pair of the finals is smaller than the original's.
        losses: What pairs of training runs prove of the held-out loss; None where none were made.
    """

    steps: tuple[Step, ...] = ()
    label: str = "original"
    number: int | None = None
    latency_ms: float
    beside_ms: float | None = None
    p90_ms: float | None = None
    throughput_per_s: float
    peak_bytes: int
    live_tensor_bytes: int | None = None
    cuda_peak_bytes: int | None = None
    size_bytes: int
    quality: float | None = None
    change: QualityChange | None = None
    agreement: Agreement | None = None
    share_of_limit: float | None = None
    process_latencies_ms: list[float] = Field(default_factory=list)
    speedup: float = 1.0
    speedup_ci95: tuple[float, float] = (1.0, 1.0)
    p_value: float | None = None
    noise: float = 1.0
    fixed_batch: int | None = None
    verdict: str = ""
    load: dict[str, float] = Field(default_factory=dict)
    doubt: str = ""
    training: TrainingEvidence | None = None
    stream: StreamFigures | None = None
    p99_ms: float | None = None
    budget: str = ""
    losses: LossProof | None = None
    is_smaller: bool = False


class LargerBatch(BaseModel):
    """Describe a training on larger batches beside its own, both with the recipe that is kept.

    Attributes:
        factor: How many times as large the batch is.
        learning_rate_factor: What the learning rate was multiplied with.
        latency_ms: Milliseconds of an optimiser step.
        throughput_per_s: Samples or tokens a second.
        speedup: Its throughput over that of the training's own batches; None where there was no time to measure it.
        verdict: Whether it is faster: "pass", "fail" or "inconclusive".
        losses: What pairs of runs over equal numbers of samples prove of the held-out loss; None where none were made.
        failure: Why its process failed; "" where it did not.
    """

    factor: int
    learning_rate_factor: float
    latency_ms: float
    throughput_per_s: float
    peak_bytes: int
    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    verdict: str
    losses: LossProof | None = None
    failure: str = ""


class RefusedTechnique(BaseModel):
    """Name a technique that cannot be used here, with the reason."""

    technique: str
    reason: str


class UntriedTechnique(BaseModel):
    """Describe a technique that applies here but was in no trial; alone, its speedup could be `bound` at most."""

    technique: str
    bound: float
    reason: str


class LayerRow(BaseModel):
    """Describe one layer of the original, for the roofline and the table of layers.

    Attributes:
        time_ms: Milliseconds of a call; for a training, of forward and backward of a step.
        backward_ms: The part of them that is backward; None for inference.
    """

    name: str
    kind: str
    calls: int
    time_ms: float
    flops: int
    bytes: int
    bound: str
    share_of_limit: float
    backward_ms: float | None = None


class Diagnosed(BaseModel):
    """Describe what bounds the original; shares and layers are empty where the machine was busy.

    Attributes:
        bound: The bound of most of the time.
        shares: The share of the time under each bound.
        share_of_limit: The least time that the machine's limits allow over the time measured; None where it was busy.
    """

    sentence: str
    bound: str
    shares: dict[str, float]
    share_of_limit: float | None
    layers: list[LayerRow] = Field(default_factory=list)


class Result(Shown, BaseModel, extra="ignore"):
    """Hold everything that one run of `whet tune` found.

    Attributes:
        kind: What was tuned: calls of a model, steps of a training, or those of a script.
        target: The name of the target.
        unit: For training: what the throughput counts, "tokens" or "samples".
        model_directory: The directory of hf:DIR, from the root; "" for other targets.
        model_type: The type that its config.json names.
        model: A digest of the names, shapes and dtypes of the model's weights.
        objective: What was to improve.
        max_drop: How much quality may be lost, as a fraction of the original's.
        max_memory_bytes: The most memory of the process, or of a step; None for any.
        budget_s: The seconds that the search was given.
        needed_s: About the budget that a verdict takes, where this one was too small for it.
        outlook: What was expected to fit into the budget.
        verdict: Whether the best variant was proved to be better than the original.
        sentence: The verdict, in words for the user.
        quality_name: What the quality is called, such as "accuracy".
        higher_is_better: Whether a larger quality is a better one.
        baseline: The original.
        compile_only: torch.compile alone; None where it was not measured.
        best: The best variant; the original, where none was better.
        finalists: The variants of the final comparison.
        trials: Every recipe that was tried, in order.
        refused: The techniques that do not apply, with their reasons.
        untried: The techniques for which there was no time.
        diagnosis: What bounds the original; None where it was not profiled.
        machine: The machine's facts.
        fingerprint: The machine's fingerprint.
        versions: The versions of the libraries.
        command: What to type for the same search.
        started_at: When the search began.
        seconds: How long it took, with waiting for quiet.
        out: The output directory.
        busy: What else ran on the machine, where that disturbed the measurements for good.
        source: For a stream: the frames that it was measured on.
        within_s: For a stream: the seconds that a frame may take, where the best quality was looked for.
        hints: What the workload's batches do not show, and so is neither calibrated nor judged.
        pareto: Numbers of the trials that no other one beats in all of time, size and quality.
        limits: The machine's limits: `read_bandwidth` in bytes/s, `gemm` as dtype -> operations/s.
        libraries: The libraries that whet.load needs for the saved model.
        unsaved: Why there is no model to load, and what to do instead; "" where there is one.
        larger_batches: For training with allow_batch: larger batches beside the training's own.
        profile: For training: where the time of the original's steps goes, in seconds; None for inference, and in
            results of earlier versions.
        time_s: The seconds of the search by part, such as "examination"; without waiting for quiet.
        num_processes: How many processes the original shares its steps among.
        plan: For a training on several processes: the keys of [parallel] of what is kept; None where one process is
            faster, and for all else.
        one_process: For a training on several processes: the original in one process with all cores.
        left_out: The nodes that made no trials, where a cluster's nodes do, with reasons.
        finals_on: The process that measured the finals, where another one than this did; "" elsewhere.
    """

    format: int = 1
    kind: KindWord = "inference"
    target: str
    unit: str = "samples"
    model_directory: str = ""
    model_type: str = ""
    model: str = ""
    objective: Objective | Literal["quality"] = "latency"
    max_drop: float = 0.01
    max_memory_bytes: int | None = None
    budget_s: float = 300.0
    needed_s: float | None = None
    outlook: str = ""
    verdict: Word
    sentence: str
    busy: str = ""
    quality_name: str
    higher_is_better: bool = True
    baseline: MeasuredVariant
    compile_only: MeasuredVariant | None = None
    best: MeasuredVariant
    finalists: list[MeasuredVariant] = Field(default_factory=list)
    trials: list[TrialRecord] = Field(default_factory=list)
    refused: list[RefusedTechnique] = Field(default_factory=list)
    source: str = ""
    within_s: float | None = None
    hints: list[str] = Field(default_factory=list)
    untried: list[UntriedTechnique] = Field(default_factory=list)
    pareto: list[int] = Field(default_factory=list)
    diagnosis: Diagnosed | None = None
    machine: dict[str, Any] = Field(default_factory=dict)
    fingerprint: str = ""
    limits: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    command: str = ""
    started_at: str = ""
    seconds: float = 0.0
    out: str = ""
    libraries: list[str] = Field(default_factory=list)
    unsaved: str = ""
    larger_batches: list[LargerBatch] = Field(default_factory=list)
    profile: StepProfile | None = None
    time_s: dict[str, float] = Field(default_factory=dict)
    num_processes: int = 1
    plan: dict[str, bool | int | float | str] | None = None
    one_process: MeasuredVariant | None = None
    left_out: list[str] = Field(default_factory=list)
    finals_on: str = ""
    _original: Any = PrivateAttr(None)

    @property
    def speedup(self) -> float:
        """Return the speedup of the best variant; 1.0 where the original stays."""
        return self.best.speedup

    @property
    def is_of_training(self) -> bool:
        """Return whether its recipe changes a training loop."""
        return self.kind in ("training", "script")

    @property
    def is_disturbed(self) -> bool:
        """Return whether other programs left no verdict, so that no figure of the original or the finals counts."""
        is_unknown = self.verdict == "inconclusive" and self.sentence.startswith(NO_VERDICT)
        return is_unknown and bool(self.busy)  # else the budget, or a loss, is what left it open

    def __repr__(self) -> str:
        return f"Result({self.verdict}: {self.sentence} target={self.target!r}, out={self.out!r})"

    @property
    def compile_s(self) -> float:
        """Return the seconds of the trials in which techniques were applied and code was compiled."""
        return sum((trial.training.set_up_s or 0.0) for trial in self.trials if trial.training is not None)

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of the best variant. A plan of several processes is no part of it."""
        return Recipe(steps=tuple(step for step in self.best.steps if step.technique not in PLAN_TECHNIQUES))

    @property
    def directory(self) -> Path:
        """Return the output directory, which holds the recipe, the report and the tuned model."""
        return Path(self.out)

    @property
    def has_model(self) -> bool:
        """Return whether there is a saved model to load. `unsaved` says why not."""
        return not self.unsaved and (self.verdict == "gain" or (self.directory / MODEL).is_dir())

    def load(self) -> Any:
        """Return the tuned model, to be called like the original. Without a gain, return the original.

        Raises:
            ArtefactError: Nothing could be saved. The message says what to do instead.
        """
        if self.verdict != "gain" and self._original is not None:
            return self._original
        if self.unsaved:
            raise ArtefactError(self.unsaved)
        return load(self.directory / MODEL, libraries=self.libraries)

    def keep_original(self, model: Any) -> None:
        """Remember a model that was handed over in memory, so that load can return it where nothing beats it."""
        self._original = model

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints: flat figures first, then everything else. Its fields are a public contract."""
        report = self.directory / "report.html"
        return {
            "format": self.format,
            "kind": self.kind,
            "target": self.target,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "busy": self.busy,
            "objective": self.objective,
            "speedup": self.best.speedup,
            "speedup_ci95": list(self.best.speedup_ci95),
            "baseline": _figures(self.baseline),
            "compile_only": _figures(self.compile_only),
            "best": _figures(self.best),
            "quality_name": self.quality_name,
            "quality_baseline": self.baseline.quality,
            "quality_best": self.best.quality,
            "quality_change": None if self.best.change is None else self.best.change.model_dump(mode="json"),
            "size_bytes_baseline": self.baseline.size_bytes,
            "size_bytes_best": self.best.size_bytes,
            "peak_bytes_baseline": self.baseline.peak_bytes,
            "peak_bytes_best": self.best.peak_bytes,
            "share_of_limit": self.best.share_of_limit,
            "recipe": str(self.directory / RECIPE),
            "steps": [step.model_dump() for step in self.best.steps],
            "model": str(self.directory / MODEL) if self.has_model else None,
            "libraries": self.libraries,
            "unsaved": self.unsaved,
            "report": str(report) if self.kind == "inference" or report.is_file() else None,
            "unit": self.unit,
            "phases_s": _phases(self.profile),
            "larger_batches": [one.model_dump(mode="json") for one in self.larger_batches],
            "fingerprint": self.fingerprint,
            "num_trials": len(self.trials),
            "needed_s": self.needed_s,
            "source": self.source,
            "within_s": self.within_s,
            "num_processes": self.num_processes,
            "plan": self.plan,
            "one_process": _figures(self.one_process),
            "time_s": self.time_s,
            "seconds": self.seconds,
        }


def _phases(profile: StepProfile | None) -> dict[str, float] | None:
    return None if profile is None else {name.removesuffix("_s"): s for name, (_, s) in profile.parts.items()}


def _figures(point: MeasuredVariant | None) -> dict[str, Any] | None:
    """Return a variant as JSON, with None in place of a memory that was not measured."""
    if point is None:
        return None
    found = point.model_dump(mode="json", exclude={"process_latencies_ms"})
    return {**found, "peak_bytes": point.peak_bytes or None}
