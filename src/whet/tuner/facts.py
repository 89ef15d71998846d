"""Hold what the examination of a target found out. A child process finds it once; all later steps read it."""

from typing import Any, Self

from pydantic import AliasChoices, BaseModel, Field

from whet.core.signature import Signature
from whet.measure.machine import Limits, Machine
from whet.profiling.model import Profile
from whet.tuner.known_target import FoundOfModel
from whet.tuner.result import Diagnosed, RefusedTechnique
from whet.tuner.space import ApplicableTechnique


class KnownFacts(BaseModel, frozen=True, extra="ignore"):
    """Hold what a study keeps of a target, so that resumed and shared searches have the same space.

    Attributes:
        machine: The machine; None in studies of earlier versions.
        score: The original's quality; None without one.
        signature: The model's input and output tensors; None where calls of a model are not what is tuned.
        weights: A digest of what may not change between searches: a model's weights and buffers, or a training's loop.
        peak_bytes: The peak memory of the original, where techniques are known by what they save of it; 0 elsewhere.
        losses: The losses of the original's first steps, where it trains.
    """

    fingerprint: str
    machine: Machine | None = None
    applicable: tuple[ApplicableTechnique, ...] = Field(validation_alias=AliasChoices("applicable", "offers"))
    refused: tuple[RefusedTechnique, ...]
    score: float | None = None
    signature: Signature | None = None
    weights: str = ""
    exclude: tuple[str, ...] = ()
    peak_bytes: int = 0
    losses: tuple[float, ...] = ()


class Facts(KnownFacts, frozen=True):
    """Hold what was found out about a target of any kind.

    Attributes:
        name: What people call the target.
        model: A digest of the model that it works with; "" where that is not known.
        num_samples: Samples of a batch, on average, or of an optimiser step.
        unit: What the samples are: "samples", "tokens" or "steps".
        diagnosis: What bounds the original; None where that is not known.
        limits: The machine's limits on the target's device; None where no technique's bound needs them.
        open_s: Seconds to build the target.
        examined_s: Seconds of the whole examination, without measuring the machine's limits.
        limits_s: Seconds to measure the machine's limits.
        start_s: Seconds that a process takes beside that, to start and to end.
        no_graph: Why the model cannot be exported as a graph; "" where it can, or where no technique needs one.
        hints: What the target does not show, in words.
        busy: What disturbed the examination on a busy machine.
    """

    machine: Machine
    name: str
    model: str = ""
    num_samples: float = 1.0
    unit: str = "samples"
    quality_name: str = ""
    higher_is_better: bool = True
    diagnosis: Diagnosed | None = None
    limits: Limits | None = None
    open_s: float = 0.0
    examined_s: float = 0.0
    limits_s: float = 0.0
    start_s: float = 0.0
    no_graph: str = ""
    hints: tuple[str, ...] = ()
    busy: str = ""

    def kept(self) -> dict[str, Any]:
        """Return the part of the facts that a study keeps, as a JSON-serialisable dict."""
        return self.model_dump(mode="json", include=set(KnownFacts.model_fields))

    def gone_on_with(self, known: KnownFacts) -> Self:
        """Return these facts with the space and the score of an earlier search of the same study."""
        names = set(KnownFacts.model_fields) - {"machine"}
        return self.model_copy(update={name: getattr(known, name) for name in names})


class TargetFacts(Facts, FoundOfModel, frozen=True):
    """Hold what was found out about a model whose calls are to be made fast.

    Attributes:
        original_bytes: The size of the weights and buffers as safetensors.
        profiles: For each batch size, a profile of the original and the number of batches of that size.
        num_threads: The number of PyTorch's threads that the target's code leaves set.
        sys_path: Where Python finds modules in the process that built the target.
    """

    signature: Signature
    diagnosis: Diagnosed
    limits: Limits
    original_bytes: int
    profiles: tuple[tuple[Profile, int], ...]
    num_threads: int
    sys_path: tuple[str, ...] = ()
