"""What tuning found: every trial, the finalists, the verdict. Written as JSON, shown as a table and as a report."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from whet.artefact import load
from whet.errors import ArtefactError
from whet.recipe import Recipe, Step
from whet.tuner.records import Agreement, QualityChange, TrialRecord

FILE = "result.json"
MODEL = "model"  # the tuned model's directory inside the output directory

Objective = Literal["latency", "throughput", "memory", "size"]
Word = Literal["gain", "no-gain", "inconclusive", "failed"]
"""inconclusive: the machine was too busy or the time too short to tell. failed: nothing could be measured."""


class MeasuredVariant(BaseModel):
    """One variant as measured in processes of its own, from its artefact. `steps` empty: the original.

    number: of its trial; None of the original. beside_ms: the original's latency beside a point that was only screened:
    its own latency may be compared with this one alone.
    peak_bytes: the whole process, Python and libraries included. live_tensor_bytes: torch's tensors after the last
    call; another runtime's weights are not among them. cuda_peak_bytes: the allocator's peak, None without a GPU.
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
    change: QualityChange | None = None  # of the quality, where it is scored sample by sample
    agreement: Agreement | None = None
    share_of_limit: float | None = None
    process_latencies_ms: list[float] = Field(default_factory=list)  # the median of each process, in order
    speedup: float = 1.0
    speedup_ci95: tuple[float, float] = (1.0, 1.0)
    p_value: float | None = None
    noise: float = 1.0  # the ratio that as many pairs of the original with itself could show by chance
    fixed_batch: int | None = None  # the only batch size that can be called; None for any
    verdict: str = ""  # pass, fail or inconclusive: is it faster than the original?
    load: dict[str, float] = Field(default_factory=dict)  # what else the machine did meanwhile: measure.load.Load
    doubt: str = ""  # why its times prove nothing, where the verdict is inconclusive for such a reason


class RefusedTechnique(BaseModel):
    technique: str
    reason: str


class UntriedTechnique(BaseModel):
    """One that applies here, and no recipe that was tried holds. bound: the most it could have gained by itself."""

    technique: str
    bound: float
    reason: str


class LayerRow(BaseModel):
    """One layer of the original, for the roofline and the table of layers."""

    name: str
    kind: str
    calls: int
    time_ms: float
    flops: int
    bytes: int
    bound: str
    share_of_limit: float


class Diagnosed(BaseModel):
    """What bounds the original."""

    sentence: str
    bound: str
    shares: dict[str, float]
    share_of_limit: float
    layers: list[LayerRow] = Field(default_factory=list)


class Result(BaseModel):
    """Everything one run of `whet tune` found."""

    model_config = ConfigDict(extra="ignore")

    format: int = 1
    target: str
    model: str = ""  # digest of the names, shapes and dtypes of the model's weights
    objective: Objective = "latency"
    max_drop: float = 0.01
    max_memory_bytes: int | None = None
    budget_s: float = 300.0
    needed_s: float | None = None  # about the budget that a verdict takes, where this one was too small for it
    outlook: str = ""  # what was expected to fit into the budget
    verdict: Word
    sentence: str
    busy: str = ""  # what else ran on the machine, where that disturbed the measurements for good
    quality_name: str
    higher_is_better: bool = True
    baseline: MeasuredVariant
    compile_only: MeasuredVariant | None = None
    best: MeasuredVariant
    finalists: list[MeasuredVariant] = Field(default_factory=list)
    trials: list[TrialRecord] = Field(default_factory=list)
    refused: list[RefusedTechnique] = Field(default_factory=list)
    untried: list[UntriedTechnique] = Field(default_factory=list)
    pareto: list[int] = Field(
        default_factory=list
    )  # numbers of the trials nothing else beats in time, size and quality
    diagnosis: Diagnosed | None = None
    machine: dict[str, Any] = Field(default_factory=dict)
    fingerprint: str = ""
    limits: dict[str, Any] = Field(default_factory=dict)  # read_bandwidth in bytes/s; gemm: dtype -> operations/s
    versions: dict[str, str] = Field(default_factory=dict)
    command: str = ""
    started_at: str = ""
    seconds: float = 0.0
    out: str = ""
    libraries: list[str] = Field(default_factory=list)  # what whet.load has to be given for the saved model
    unsaved: str = ""  # why there is no model to load, and what to do instead; "" where there is one
    _original: Any = PrivateAttr(None)

    @property
    def speedup(self) -> float:
        return self.best.speedup

    def _repr_html_(self) -> str:
        from whet.tuner.notebook import result_html

        return result_html(self)

    @property
    def recipe(self) -> Recipe:
        return Recipe(steps=self.best.steps)

    @property
    def directory(self) -> Path:
        """Where recipe, report and the tuned model lie."""
        return Path(self.out)

    @property
    def has_model(self) -> bool:
        """Whether there is one to load; `unsaved` says why not."""
        return not self.unsaved and (self.verdict == "gain" or (self.directory / MODEL).is_dir())

    def load(self) -> Any:
        """Return the tuned model, to be called as the original. Without a gain, the original.

        Raises ArtefactError where nothing could be saved, with what to do instead.
        """
        if self.verdict != "gain" and self._original is not None:
            return self._original
        if self.unsaved:
            raise ArtefactError(self.unsaved)
        return load(self.directory / MODEL, libraries=self.libraries)

    def keep_original(self, model: Any) -> None:
        """Remember a model that was handed over in memory, to be returned where nothing beats it."""
        self._original = model

    def summary(self) -> dict[str, Any]:
        """The contract of `--json`: flat figures first, everything else behind them."""
        return {
            "format": self.format,
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
            "recipe": str(self.directory / "recipe.toml"),
            "steps": [step.model_dump() for step in self.best.steps],
            "model": str(self.directory / MODEL) if self.has_model else None,
            "libraries": self.libraries,
            "unsaved": self.unsaved,
            "report": str(self.directory / "report.html"),
            "fingerprint": self.fingerprint,
            "num_trials": len(self.trials),
            "seconds": self.seconds,
        }


def _figures(point: MeasuredVariant | None) -> dict[str, Any] | None:
    if point is None:
        return None
    found = point.model_dump(mode="json", exclude={"process_latencies_ms"})
    return {**found, "peak_bytes": point.peak_bytes or None}  # one that was only screened has none
