"""What the examination of a target found out: made by a child process once, read by everything that follows."""

from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from whet.machine import Limits, Machine
from whet.profiler import Profile
from whet.signature import Signature
from whet.tuner.known_target import BatchDimension
from whet.tuner.result import Diagnosed, RefusedTechnique
from whet.tuner.space import ApplicableTechnique


class KnownFacts(BaseModel):
    """What a study keeps of a target, so that a search that goes on, or that others share, has the same space.

    Attributes:
        fingerprint: Of the machine.
        machine: The machine; None in studies of earlier versions.
        applicable: The techniques that apply, with their options.
        refused: The techniques that do not, with reasons.
        score: The original's quality; None without one.
        signature: The tensors that go in and come out.
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
    """Everything that was found out about a target.

    Attributes:
        machine: The machine.
        name: The workload's name.
        open_s: Seconds to build the model and its inputs.
        examined_s: Seconds of the whole examination, without measuring the machine's limits.
        limits_s: Seconds to measure the machine's limits.
        batch: Which of the inputs' sizes are a batch that may be free.
        sample_scores: The score of each sample, where the quality gives them.
        effects: What forward does that a graph would leave out, in words.
        shared: Places of the outputs that share memory with an input, a weight or another output.
        depends_on_grad_mode: Whether the outputs differ while gradients are on.
        content: A digest of the parameters and of all batches; "" where the outputs were not written.
        quality_name: What people call the quality.
        higher_is_better: Whether a higher score is a better one.
        model: A digest of the names, shapes and dtypes of the weights.
        num_samples: Samples in a batch, on average.
        original_bytes: What the weights and buffers take as safetensors.
        no_graph: Why no graph can stand for the model; "" where one can.
        limits: The machine's limits on the model's device.
        profiles: A profile of the original for each size of batch, and how many batches are of it.
        diagnosis: What bounds the original.
        num_threads: PyTorch's threads, as the target's code leaves them.
        busy: What disturbed the profile on a busy machine.
        sys_path: Where Python finds modules in the process that built the target.
    """

    machine: Machine
    name: str
    open_s: float
    examined_s: float
    limits_s: float = 0.0
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
    limits: Limits
    profiles: tuple[tuple[Profile, int], ...]
    diagnosis: Diagnosed
    num_threads: int
    busy: str = ""
    sys_path: tuple[str, ...] = ()

    def kept(self) -> dict[str, Any]:
        """Return what a study keeps, as JSON."""
        return self.model_dump(mode="json", include=set(KnownFacts.model_fields))

    def gone_on_with(self, known: KnownFacts) -> "TargetFacts":
        """Return these facts with what an earlier search of the same study chose from."""
        names = set(KnownFacts.model_fields) - {"machine"}
        return self.model_copy(update={name: getattr(known, name) for name in names})
