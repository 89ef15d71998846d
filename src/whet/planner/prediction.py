"""Hold what is predicted of a layout: memory by part, time by part, and how far each may be off."""

from pydantic import BaseModel, ConfigDict


class Interval(BaseModel):
    """Hold a predicted figure with the range in which it lies nineteen times of twenty, judged by published runs.

    Attributes:
        value: What is expected.
        low: The lower end.
        high: The upper end.
    """

    model_config = ConfigDict(frozen=True)

    value: float
    low: float
    high: float


class _Parts(BaseModel):
    """Hold what something is made of, one field a part."""

    model_config = ConfigDict(frozen=True)

    @property
    def by_name(self) -> dict[str, float]:
        """Return all parts by their names."""
        return {name: float(getattr(self, name)) for name in type(self).model_fields}

    @property
    def total(self) -> float:
        """Return the sum of all parts."""
        return sum(self.by_name.values())


class MemoryParts(_Parts):
    """Hold the bytes of the chip that needs most.

    Attributes:
        parameters: The weights that are computed with, as far as the chip keeps them.
        gradients: The sums of a step.
        optimizer: The optimiser's state, with master weights.
        activations: What forward keeps for backward.
        buffers: What is gathered, or on its way, at a time.
        fragmentation: What the allocator holds beside what is used.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    fragmentation: float


class StepParts(_Parts):
    """Hold the seconds of a step on the chip that needs most, by what they go to. Communication is what is exposed.

    Attributes:
        forward: Computing outputs.
        backward: Computing gradients.
        recompute: Computing again what forward did not keep.
        tensor_communication: Messages of chips that share matrices.
        pipeline_communication: Messages between stages.
        data_communication: Sums of gradients, and shards of state.
        context_communication: Messages of chips that share rows of tokens.
        expert_communication: Messages of chips that share experts.
        bubble: Waiting for the other stages as the pipeline fills and empties.
        optimizer: The update.
        slowest: Waiting for the slowest of all chips.
    """

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
    slowest: float = 0.0


class Prediction(BaseModel):
    """Hold what a layout is predicted to take.

    Attributes:
        memory: What the memory of the chip that needs most goes to.
        memory_total: Of the chip that needs most, in bytes.
        step: What the time of a step goes to.
        step_s: The time of a step.
        flops: Operations of the model in a step, without what is computed again.
        flops_of_chips: Operations of all chips in a step, with it.
        sent: Bytes that a chip sends in a step, by what for ("tensor", "pipeline", "data", "context", "expert").
        mfu: The model's operations a second over the peak of all chips.
        outside: What lies outside of the range of the published runs that the model was fitted to, in words.
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
