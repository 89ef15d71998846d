"""Hold what the examination of a target found out. A child process finds it once; all later steps read it."""

from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from whet.machine import Limits, Machine
from whet.profiler import Profile
from whet.signature import Signature
from whet.tuner.known_target import BatchDimension
from whet.tuner.result import Diagnosed, RefusedTechnique
from whet.tuner.space import ApplicableTechnique


class KnownFacts(BaseModel):
    """Hold what a study keeps of a target, so that resumed and shared searches have the same space.

    Attributes:
        fingerprint: The machine's fingerprint.
        machine: The machine; None in studies of earlier versions.
        applicable: The techniques that apply, with their options.
        refused: The techniques that do not apply, with reasons.
        score: The original's quality; None without one.
        signature: The model's input and output tensors.
        weights: A digest of the model's weights and buffers.
        exclude: Techniques that the user does not want tried.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    fingerprint: str
    machine: Machine | None = None
    applicable: tuple[ApplicableTechnique, ...] = Field(validation_alias=AliasChoices("applicable", "offers"))
    refused: tuple[RefusedTechnique, ...]
    score: float | None = None
    signature: Signature
    weights: str = ""
    exclude: tuple[str, ...] = ()


class TargetFacts(KnownFacts):
    """Hold everything that was found out about a target.

    Attributes:
        machine: The machine.
        name: The workload's name.
        open_s: Seconds to build the model and its inputs.
        examined_s: Seconds of the whole examination, without measuring the machine's limits.
        limits_s: Seconds to measure the machine's limits.
        start_s: Seconds that the process took beside that, to start and to end.
        batch: What is known of the batch dimension.
        sample_scores: The score of each sample, where the quality gives them.
        effects: What forward does that a graph would leave out, in words.
        shared: Positions of the outputs that share memory with an input, a weight or another output.
        depends_on_grad_mode: Whether the outputs differ while gradients are on.
        content: A digest of the parameters and of all batches; "" where the outputs were not written.
        quality_name: The quality's name, for people.
        higher_is_better: Whether a higher score is a better one.
        model: A digest of the names, shapes and dtypes of the weights.
        num_samples: Samples in a batch, on average.
        original_bytes: The size of the weights and buffers as safetensors.
        no_graph: Why the model cannot be exported as a graph; "" where it can.
        hints: What the batches do not show, in words.
        limits: The machine's limits on the model's device.
        profiles: For each batch size, a profile of the original and the number of batches of that size.
        diagnosis: What bounds the original.
        num_threads: The number of PyTorch's threads that the target's code leaves set.
        busy: What disturbed the profile on a busy machine.
        sys_path: Where Python finds modules in the process that built the target.
    """

    machine: Machine
    name: str
    open_s: float
    examined_s: float
    limits_s: float = 0.0
    start_s: float = 0.0
    batch: BatchDimension = BatchDimension()
    sample_scores: tuple[float, ...] = ()
    effects: tuple[str, ...] = ()
    shared: tuple[int, ...] = ()
    depends_on_grad_mode: bool = False
    content: str = ""
    quality_name: str
    higher_is_better: bool = True
    model: str = ""
    num_samples: float
    original_bytes: int
    no_graph: str = ""
    hints: tuple[str, ...] = ()
    limits: Limits
    profiles: tuple[tuple[Profile, int], ...]
    diagnosis: Diagnosed
    num_threads: int
    busy: str = ""
    sys_path: tuple[str, ...] = ()

    def kept(self) -> dict[str, Any]:
        """Return the part of the facts that a study keeps, as a JSON-serialisable dict."""
        return self.model_dump(mode="json", include=set(KnownFacts.model_fields))

    def gone_on_with(self, known: KnownFacts) -> "TargetFacts":
        """Return these facts with the space and the score of an earlier search of the same study."""
        names = set(KnownFacts.model_fields) - {"machine"}
        return self.model_copy(update={name: getattr(known, name) for name in names})
