"""Hold what is predicted of a layout: memory by part, time by part, and how far each may be off."""

from pydantic import BaseModel, ConfigDict


class Interval(BaseModel):
    """Hold a predicted figure with the range in which it lies nineteen times of twenty, judged by published runs."""

    model_config = ConfigDict(frozen=True)

    value: float
    low: float
    high: float


class MemoryParts(BaseModel):
    """Hold the bytes of the chip that needs most."""

    model_config = ConfigDict(frozen=True)

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    fragmentation: float

    @property
    def total(self) -> float:
        return float(sum(getattr(self, name) for name in type(self).model_fields))


class StepParts(BaseModel):
    """Hold the seconds of a step on the chip that needs most, by what they go to. Communication is what is exposed."""

    model_config = ConfigDict(frozen=True)

    forward: float
    backward: float
    recompute: float
    tensor_communication: float
    pipeline_communication: float
    data_communication: float
    context_communication: float
    expert_communication: float
    bubble: float
    optimizer: float

    @property
    def total(self) -> float:
        return float(sum(getattr(self, name) for name in type(self).model_fields))


class Prediction(BaseModel):
    """Hold what a layout is predicted to take.

    Attributes:
        memory_total: Of the chip that needs most, in bytes.
        step_s: The time of a step.
        flops: Operations of the model in a step, without what is computed again.
        flops_of_chips: Operations of all chips in a step, with it.
        sent: Bytes that a chip sends in a step, by what for ("tensor", "pipeline", "data", "context", "expert").
        mfu: The model's operations a second over the peak of all chips.
        outside: What lies outside of the range of the published runs that the model was fitted to, in words.
        assumptions: What is taken as given, each with its source.
    """

    model_config = ConfigDict(frozen=True)

    memory: MemoryParts
    memory_total: Interval
    step: StepParts
    step_s: Interval
    flops: float
    flops_of_chips: float
    sent: dict[str, float]
    mfu: float
    outside: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
