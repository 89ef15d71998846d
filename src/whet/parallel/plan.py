"""Say how a training is divided among processes: the table [parallel] of `whet train`."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from whet.errors import OptionError

Degree = Annotated[int, Field(ge=1)]
Stage = Literal[0, 1, 2, 3]
PrecisionName = Literal["float32", "bfloat16", "float16"]
Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]
_INTERLEAVED = ("interleaved_1f1b", "zero_bubble")  # the schedules of processes with several stages


class ParallelPlan(BaseModel):
    """Say how a training is divided among the processes that torchrun started.

    Attributes:
        data_parallel_replicate_degree: The copies of the model, or of its groups of shards; None for as many as there
            are processes left.
        data_parallel_shard_degree: The processes that share one copy's state, from zero_stage 2 on; None for as many as
            there are processes left.
        tensor_parallel_degree: The processes that share each matrix, within a stage where there is a pipeline.
        pipeline_parallel_degree: The processes that share the layers.
        context_parallel_degree: The processes that share each row of tokens.
        zero_stage: What data-parallel processes share in the place of keeping copies (Rajbhandari et al., 2020): 0
            nothing, 1 the optimiser's state, 2 gradients too, 3 parameters too. None: 3 with a shard degree, else 0.
        offload: What lies in host memory beside the GPU: "parameters" with their gradients and the optimiser's state.
        param_dtype: What sharded parameters are computed in; None leaves them as they are.
        reduce_dtype: What gradients are summed over processes in; None for param_dtype.
        bucket_cap_mb: The size of the pieces in which DDP sums gradients, so that sums overlap with backward.
        static_graph: Whether every step uses the same parameters in the same order, which DDP may rely on.
        gradient_as_bucket_view: Whether gradients lie in DDP's buckets, so that they are not copied.
        find_unused_parameters: Whether DDP looks for parameters without a gradient in each step.
        compression: How gradients are made smaller for the wire, in DDP.
        powersgd_rank: The rank of the matrices that PowerSGD sends (Vogels et al., 2019).
        powersgd_start_step: The steps before gradients are compressed by it.
        hierarchical_all_reduce: Whether gradients are summed within each machine first, and then between machines.
        sequence_parallel: Whether tensor-parallel processes share the tokens between their matrices, and on the way to
            the next stage of a pipeline.
        async_tensor_parallel: Whether these exchange while they multiply; on CUDA, with torch.compile.
        pipeline_schedule: In which order stages compute.
        pipeline_micro_batches: The parts of a batch that go through the stages; None for twice as many as stages.
        stages_per_rank: The stages of a process, for schedules that interleave them; None for 2 of these, else 1.
        checkpointing: Whether the layers of a pipeline keep only their inputs until backward: "blocks" for all of them.
        timeout_s: The seconds after which a process that does not answer ends the run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_parallel_replicate_degree: Degree | None = None
    data_parallel_shard_degree: Degree | None = None
    tensor_parallel_degree: Degree = 1
    pipeline_parallel_degree: Degree = 1
    context_parallel_degree: Degree = 1
    zero_stage: Stage | None = None
    offload: Literal["none", "parameters"] = "none"
    param_dtype: PrecisionName | None = None
    reduce_dtype: PrecisionName | None = None
    bucket_cap_mb: Annotated[float, Field(gt=0, le=1024)] = 25.0
    static_graph: bool = False
    gradient_as_bucket_view: bool = True
    find_unused_parameters: bool = False
    compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    powersgd_rank: Degree = 4
    powersgd_start_step: Annotated[int, Field(ge=2)] = 10
    hierarchical_all_reduce: bool = False
    sequence_parallel: bool = True
    async_tensor_parallel: bool = False
    pipeline_schedule: Schedule = "1f1b"
    pipeline_micro_batches: Degree | None = None
    stages_per_rank: Degree | None = None
    checkpointing: Literal["none", "blocks"] = "none"
    timeout_s: Annotated[float, Field(ge=1, le=86_400)] = 600.0

    @property
    def stage(self) -> Stage:
        """Return the stage of ZeRO, which the shard degree implies where it is not given."""
        if self.zero_stage is not None:
            return self.zero_stage
        return 3 if (self.data_parallel_shard_degree or 1) > 1 else 0

    @property
    def is_interleaved(self) -> bool:
        """Return whether the schedule of a pipeline is made for processes with several stages."""
        return self.pipeline_schedule in _INTERLEAVED

    @property
    def num_stages_per_rank(self) -> int:
        """Return how many stages of a pipeline a process has."""
        if self.stages_per_rank is not None:
            return self.stages_per_rank
        return 2 if self.is_interleaved else 1

    @property
    def num_micro_batches(self) -> int:
        """Return into how many parts a batch is divided, which go through the stages of a pipeline."""
        return self.pipeline_micro_batches or 2 * self.pipeline_parallel_degree * self.num_stages_per_rank

    @model_validator(mode="after")
    def _fits_itself(self) -> "ParallelPlan":
        if self.stage < 2 and (self.data_parallel_shard_degree or 1) > 1:
            raise ValueError(
                f"data_parallel_shard_degree is {self.data_parallel_shard_degree}, and zero_stage {self.stage} shares "
                "neither gradients nor parameters; set zero_stage to 2 or 3, or leave the degree out"
            )
        uses_ddp = self.stage < 2 and self.tensor_parallel_degree == 1
        ddp = "zero_stage 0 or 1 and a tensor_parallel_degree of 1"
        for name, is_set, needs, holds in (
            ("offload", self.offload != "none", "zero_stage 2 or 3", self.stage >= 2),
            ("param_dtype", self.param_dtype is not None, "zero_stage 2 or 3", self.stage >= 2),
            ("reduce_dtype", self.reduce_dtype is not None, "zero_stage 2 or 3", self.stage >= 2),
            ("compression", self.compression != "none", "zero_stage 0", self.stage == 0),
            ("hierarchical_all_reduce", self.hierarchical_all_reduce, "zero_stage 0", self.stage == 0),
            ("hierarchical_all_reduce", self.hierarchical_all_reduce, ddp, uses_ddp),
            ("static_graph", self.static_graph, ddp, uses_ddp),
            ("find_unused_parameters", self.find_unused_parameters, ddp, uses_ddp),
            (
                "async_tensor_parallel",
                self.async_tensor_parallel,
                "a tensor_parallel_degree above 1",
                self.tensor_parallel_degree > 1,
            ),
        ):
            if is_set and not holds:
                raise ValueError(f"{name} changes nothing without {needs}; leave it out, or set that")
        if self.zero_stage == 1 and self.tensor_parallel_degree * self.pipeline_parallel_degree > 1:
            raise ValueError("zero_stage 1 divides the optimiser of whole models; with other degrees, set it to 2")
        self._fits_pipeline()
        if self.tensor_parallel_degree * self.pipeline_parallel_degree > 1:
            own = [name for name in _OF_DDP if getattr(self, name) != type(self).model_fields[name].default]
            if own:
                raise ValueError(
                    f"{own[0]} is for whole models, which DDP wraps; leave it out, or set tensor_parallel_degree and "
                    "pipeline_parallel_degree to 1"
                )
        return self

    def _fits_pipeline(self) -> None:
        """Raise ValueError where keys of pipelines change nothing, or do not fit each other."""
        if self.pipeline_parallel_degree == 1:
            for name in ("pipeline_schedule", "pipeline_micro_batches", "stages_per_rank", "checkpointing"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} changes nothing without a pipeline_parallel_degree above 1; leave it out, or set that"
                    )
            return
        if (self.stages_per_rank or 1) > 1 and not self.is_interleaved:
            raise ValueError(
                f"stages_per_rank is {self.stages_per_rank}, and {self.pipeline_schedule} has one stage a process; "
                f"leave it out, or set pipeline_schedule to one of {', '.join(_INTERLEAVED)}"
            )
        if self.pipeline_schedule == "zero_bubble" and self.stage >= 2:
            raise ValueError(
                "zero_bubble computes the gradients of weights outside of backward, where shards of zero_stage "
                f"{self.stage} are not there; set zero_stage to 0, or another pipeline_schedule"
            )
        for name, is_set in (
            ("static_graph", self.static_graph),
            ("compression", self.compression != "none"),
            ("hierarchical_all_reduce", self.hierarchical_all_reduce),
            ("async_tensor_parallel", self.async_tensor_parallel),
        ):
            if is_set:
                raise ValueError(f"{name} does not go with a pipeline_parallel_degree above 1; leave it out")


_OF_DDP = ("static_graph", "find_unused_parameters", "compression", "hierarchical_all_reduce")


class Degrees(BaseModel):
    """Hold the degrees of a plan for so many processes. Their product is the world size."""

    model_config = ConfigDict(frozen=True)

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def data(self) -> int:
        """Return how many processes see different rows."""
        return self.replicate * self.shard

    @property
    def sizes(self) -> dict[str, int]:
        """Return the dimensions of the mesh, the slowest first, by their names."""
        return {
            "pipeline": self.pipeline,
            "replicate": self.replicate,
            "shard": self.shard,
            "context": self.context,
            "tensor": self.tensor,
        }


def degrees_of(plan: ParallelPlan, world_size: int) -> Degrees:
    """Return the degrees of a plan for a world size.

    Raises:
        OptionError: They do not multiply to it.
    """
    pipeline, context, tensor = (
        plan.pipeline_parallel_degree,
        plan.context_parallel_degree,
        plan.tensor_parallel_degree,
    )
    given = {
        "pipeline_parallel_degree": pipeline,
        "context_parallel_degree": context,
        "tensor_parallel_degree": tensor,
        "data_parallel_replicate_degree": plan.data_parallel_replicate_degree,
        "data_parallel_shard_degree": plan.data_parallel_shard_degree if plan.stage >= 2 else 1,
    }
    product = 1
    for degree in given.values():
        product *= degree or 1
    left = world_size // product
    told = " x ".join(f"{name} {degree}" for name, degree in given.items() if degree and degree > 1) or "a plan of 1"
    free = [name for name, degree in given.items() if degree is None]
    if left * product != world_size or (left > 1 and not free):
        raise OptionError(
            f"[parallel] {told} does not divide the {world_size} processes that were started; start a multiple of "
            f"{product} with torchrun --nproc-per-node, or change the degrees"
        )
    replicate, shard = plan.data_parallel_replicate_degree, plan.data_parallel_shard_degree
    if plan.stage < 2:
        return Degrees(pipeline=pipeline, replicate=replicate or left, context=context, tensor=tensor)
    if shard is None:
        return Degrees(pipeline=pipeline, replicate=replicate or 1, shard=left, context=context, tensor=tensor)
    return Degrees(pipeline=pipeline, replicate=replicate or left, shard=shard, context=context, tensor=tensor)
