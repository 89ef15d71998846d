"""Say which runs of whet train can share the layers of their model among processes, and what their stages take."""

from typing import Any

from torch import Tensor

from whet.errors import OptionError, RecipeError
from whet.parallel.plan import ParallelPlan
from whet.techniques.mechanisms.packing.packed_attention import Documents
from whet.trainer.model import Batch
from whet.trainer.setup import ACCUMULATION, SetUp


def arguments_of(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the token ids [B, T] of a batch, and the positions and the mask of rows that hold several documents."""
    if "documents" not in batch:
        return batch["ids"], {}
    mask_B1TT = Documents(batch["documents"]).mask
    return batch["ids"], {"positions_BT": batch["positions"], "mask_B1TT": mask_B1TT}


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
