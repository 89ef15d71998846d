"""Check that what a run asks for bears how its plan divides the model among processes."""

from typing import Any

from whet.errors import OptionError, RecipeError
from whet.parallel.division import Division
from whet.parallel.plan import ParallelPlan
from whet.techniques.prepared_trainer import stage_refusal
from whet.techniques.training.accumulation import ACCUMULATION
from whet.trainer.setup import SetUp

# What leaves a divided model's modules as they are, or was held to the steps of one process with it.
_BESIDE_DIVIDED_MATRICES = frozenset(
    {
        ACCUMULATION,
        "adamw_8bit",
        "allocator",
        "autocast",
        "checkpointing",
        "compile",
        "cudnn_benchmark",
        "fused_optimizer",
        "loader",
        "matmul_precision",
        "optimizer_in_backward",
        "prefetch",
        "set_to_none",
        "threads",
    }
)


def check_plan(setup: SetUp, division: Division) -> None:
    """Check that a run's sections and recipe bear its plan.

    Raises:
        OptionError: A section needs what the plan divides.
        RecipeError: A technique does.
    """
    if division.is_alone:
        return
    if division.degrees.pipeline > 1:
        check_staged(setup, division.plan)
    if division.degrees.tensor > 1:
        _check_beside_divided_matrices(setup, division)
    if division.plan.stage >= 2 and setup.config.prune is not None and setup.config.prune.kind == "unstructured":
        raise OptionError(
            "[prune] compares the weights of whole matrices, which parallel.zero_stage 2 and 3 divide; set zero_stage "
            "to 0 or 1, or leave [prune] out"
        )
    for step in setup.steps:
        if step.technique == ACCUMULATION:  # each process sums its parts by itself
            continue
        if (found := stage_refusal(step, division.plan.stage)) is not None:
            raise RecipeError(
                f"{step.technique} {found.why}; leave it out of the recipe, or set zero_stage to {found.instead}"
            )


def check_staged(setup: SetUp, plan: ParallelPlan) -> None:
    """Check that the layers of a run's model can be shared among processes.

    Raises:
        OptionError: The run does something that needs the whole model.
        RecipeError: Its recipe does.
    """
    config = setup.config
    told = f"parallel.pipeline_parallel_degree {plan.pipeline_parallel_degree}"
    if config.task != "language":
        raise OptionError(f"{told} is for language models, and task is {config.task}; set it to 1")
    given: dict[str, Any] = {"distill": config.distill, "lora": config.lora, "prune": config.prune}
    for name, section in given.items():
        if section is not None:
            raise OptionError(f"[{name}] needs all layers in each process; leave it out, or {told} with its keys")
    for step in setup.steps:
        if step.technique != ACCUMULATION:
            raise RecipeError(
                f"{step.technique} of the recipe is not made for models whose layers are shared among processes; leave "
                f"it out of the recipe, or leave {told} out"
            )


def _check_beside_divided_matrices(setup: SetUp, division: Division) -> None:
    """Check that nothing else changes the matrices that tensor parallelism divides, or needs whole ones.

    Raises:
        RecipeError: A technique does.
        OptionError: Pruning does, or what is asked for needs a technique.
    """
    if division.plan.async_tensor_parallel and all(step.technique != "compile" for step in setup.steps):
        raise OptionError(
            "parallel.async_tensor_parallel changes compiled models alone; add the technique compile to the recipe, or "
            "leave it out"
        )
    for step in setup.steps:
        if step.technique not in _BESIDE_DIVIDED_MATRICES:
            raise RecipeError(
                f"{step.technique} does not bear matrices that processes share (parallel.tensor_parallel_degree); "
                "leave it out of the recipe, or divide the work otherwise"
            )
    if setup.config.prune is not None and setup.config.prune.kind == "unstructured":
        raise OptionError(
            "[prune] of single weights needs whole matrices, and parallel.tensor_parallel_degree divides them; leave "
            "one of them out"
        )
