"""Hold what `whet plan` answers: ranked plans, why others do not fit, how the best one scales, what is assumed."""

from pydantic import BaseModel, ConfigDict

from whet.planner.cluster import Cluster
from whet.planner.layout import Layout, Work
from whet.planner.memory_trace import MemoryTrace
from whet.planner.model_shape import ModelShape
from whet.planner.prediction import Interval, Prediction
from whet.planner.whet_train import TrainSection

PART_NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimiser state",
    "activations": "activations",
    "buffers": "buffers",
    "fragmentation": "fragmentation",
}
"""What messages call the parts of memory."""


STEP_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "computing again",
    "tensor_communication": "messages of tensor parallelism",
    "pipeline_communication": "messages of the pipeline",
    "data_communication": "sums of gradients, and shards of state",
    "context_communication": "messages of context parallelism",
    "expert_communication": "messages of experts",
    "bubble": "the pipeline's bubble",
    "optimizer": "the optimiser",
    "slowest": "waiting for the slowest GPU",
}
"""What messages call the parts of a step."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class RankedPlan(_Record):
    """Hold a plan that fits, with what it is predicted to take and to cost.

    Attributes:
        layout: How it divides the training.
        prediction: Its memory, time and messages.
        exposed_s: The seconds of a step in which chips wait for messages.
        tokens_per_s: Of all chips.
        joules_per_token: Of all chips and hosts, under full load.
        dollars_per_million_tokens: None where no price is known.
        time_s: The time that the tokens asked for take; None where none were.
        dollars: What they cost; None where no tokens or no price is known.
        is_tight: Whether the memory may be too little, by the upper end of its interval.
        train: What `whet train` takes.
    """

    layout: Layout
    prediction: Prediction
    exposed_s: float
    tokens_per_s: Interval
    joules_per_token: Interval
    dollars_per_million_tokens: Interval | None
    time_s: Interval | None
    dollars: Interval | None
    is_tight: bool
    train: TrainSection


class Alternative(_Record):
    """Hold a usual way to divide a training, with why it does not fit, or how fast it is.

    Attributes:
        name: What it is called.
        layout: How it divides the training.
        memory_bytes: What the chip needs that needs most.
        lacks: The bytes that a chip lacks; 0 where it fits.
        part: The largest part of its memory.
        part_bytes: The bytes of this part.
        step_s: The time of a step.
    """

    name: str
    layout: Layout
    memory_bytes: float
    lacks: float
    part: str
    part_bytes: float
    step_s: Interval

    @property
    def fits(self) -> bool:
        """Return whether its memory suffices."""
        return self.lacks == 0


class Misfits(_Record):
    """Count the layouts that do not fit, by the largest part of their memory.

    Attributes:
        looked_at: How many layouts were looked at, with those that fit.
        by_part: How many layouts a part is largest in.
        nearest: The one that lacks least; None where all fit.
    """

    looked_at: int
    by_part: dict[str, int]
    nearest: Alternative | None


class ScalePoint(_Record):
    """Hold the best plan for a number of chips.

    Attributes:
        chips: How many chips.
        global_batch_size: The rows of a step.
        layout: The best one; None where none fits, or none is possible.
        step_s: The time of a step.
        tokens_per_s: Of all chips.
        efficiency: Tokens a second of a chip, over those of the smallest number of chips.
        mfu: The model's operations a second over the peak of all chips.
        shares: The shares of a step by what they go to.
        is_outside: Whether it lies outside of the range that the predictions were fitted to.
        why: Why there is no plan.
    """

    chips: int
    global_batch_size: int
    layout: Layout | None = None
    step_s: Interval | None = None
    tokens_per_s: Interval | None = None
    efficiency: float | None = None
    mfu: float | None = None
    shares: dict[str, float] = {}
    is_outside: bool = False
    why: str = ""


class Scaling(_Record):
    """Hold how the best plan scales.

    Attributes:
        fixed: With the batch that was asked for.
        growing: With a batch that grows with the chips.
        breaks_at: The chips from which on a chip does less than half of what it did at first, with the fixed batch, or
            from which on there is no plan; None where neither comes.
        why: What takes the time there.
    """

    fixed: tuple[ScalePoint, ...]
    growing: tuple[ScalePoint, ...]
    breaks_at: int | None
    why: str


class PlanAnswer(_Record):
    """Hold the whole answer for a training.

    Attributes:
        model: The sizes of the model.
        model_type: Its family, as config.json names it.
        cluster: The chips, and what lies between them.
        work: What a step trains on.
        tokens: What the training is to see in all; None where it was not said.
        plans: The plans that fit, the fastest first, one for each combination of degrees.
        runnable: The fastest plan that `whet train` can run; None where there is none.
        alternatives: The usual ways to divide a training.
        misfits: The layouts that do not fit.
        scaling: How the best plan scales; None where that was not asked for.
        num_possible: How many layouts there are.
        usable_bytes: The memory of a chip that plans may take.
        assumptions: What is taken as given, each with its source.
        outside: What lies outside of the range that the predictions were fitted to.
        notices: What the reader should know first.
        trace: What a trace of one rank of the best plan found of its memory; None where none was asked for.
    """

    model: ModelShape
    model_type: str
    cluster: Cluster
    work: Work
    tokens: float | None
    plans: tuple[RankedPlan, ...]
    runnable: RankedPlan | None
    alternatives: tuple[Alternative, ...]
    misfits: Misfits
    scaling: Scaling | None
    num_possible: int
    usable_bytes: float
    assumptions: tuple[str, ...]
    outside: tuple[str, ...]
    notices: tuple[str, ...]
    trace: MemoryTrace | None = None

    @property
    def best(self) -> RankedPlan:
        """Return the fastest plan that fits."""
        return self.plans[0]
