"""Say how `whet train` runs a layout: its tables, the recipe, the torchrun line, and what it cannot do."""

from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from whet.parallel.plan import ParallelPlan
from whet.planner.cluster import Cluster
from whet.planner.layout import Layout, Work

_AGAIN = {"selective": "parts of attention", "operators": "operators"}
_OTHER = ("adamw_8bit", "adafactor", "muon")  # optimisers that are techniques of a recipe
_DIVIDED = ("llama", "mistral", "qwen2", "qwen3")  # the decoders whose matrices and layers whet divides


class TrainSection(BaseModel):
    """Hold what `whet train` takes to run a layout.

    Attributes:
        toml: The tables [batch] and [parallel], and [optimizer] where it is not AdamW.
        recipe: The techniques that the recipe needs.
        differs: What whet does otherwise than the layout.
        missing: Why whet cannot run the layout; empty where it can.
        torchrun: The line that starts it, on each machine.
    """

    model_config = ConfigDict(frozen=True)

    toml: str
    recipe: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    torchrun: str

    @property
    def runs(self) -> bool:
        """Return whether `whet train` can run the layout."""
        return not self.missing


def missing_in_whet(layout: Layout, model_type: str) -> tuple[str, ...]:
    """Return why `whet train` cannot run a layout; nothing where it can."""
    found = []
    if layout.context > 1:
        found.append(f"context_parallel_degree {layout.context}: whet shares no rows of tokens among processes")
    if layout.expert > 1:
        found.append(f"expert-parallel degree {layout.expert}: whet shares no experts among processes")
    if layout.tensor * layout.pipeline > 1 and model_type not in _DIVIDED:
        found.append(f"whet divides the matrices and layers of {', '.join(_DIVIDED)} alone, and this is {model_type}")
    if layout.recompute in ("selective", "operators"):
        found.append(f"some {_AGAIN[layout.recompute]} computed again: whet computes whole blocks again, or nothing")
    if layout.precision == "fp8" and layout.pipeline > 1:
        found.append("fp8 in a pipeline: whet's pipelines take no technique of a recipe")
    if layout.offload and layout.tensor * layout.pipeline > 1:
        found.append("offload with divided matrices or layers")
    return (*found, *_missing_optimizer(layout))


def _missing_optimizer(layout: Layout) -> tuple[str, ...]:
    """Return why `whet train` cannot update the parameters so; nothing where it can."""
    name = layout.optimizer
    if name == "lion":
        return ("whet has no Lion",)
    if name not in _OTHER:
        return ()
    found = []
    if layout.pipeline > 1:
        found.append(f"{name} in a pipeline: whet's pipelines take no technique of a recipe")
    if layout.tensor > 1 and name != "adamw_8bit":
        found.append(f"{name} with divided matrices")
    if layout.zero_stage == 1 and layout.tensor == 1:
        found.append(f"{name} with zero_stage 1, which divides AdamW alone")
    if layout.zero_stage >= 2 and name == "adamw_8bit":
        found.append("adamw_8bit with zero_stage 2 or 3, whose checkpoints do not divide its state")
    return tuple(found)


def train_section(layout: Layout, work: Work, cluster: Cluster, model_type: str) -> TrainSection:
    """Return what `whet train` takes to run a layout, or why it cannot."""
    keys, recipe, differs = plan_keys(layout)
    if layout.pipeline > 1:
        keys["pipeline_micro_batches"] = layout.num_micro_batches(work)
    batch = {"global_batch_size": work.global_batch_size}
    if layout.pipeline == 1:
        batch["micro_batch_size"] = layout.micro_batch_size
    tables: dict[str, Any] = {"batch": batch, "parallel": keys}
    if layout.optimizer == "sgd":
        tables["optimizer"] = {"name": "sgd"}
    missing = missing_in_whet(layout, model_type)
    if not missing:
        try:
            ParallelPlan.model_validate(keys)
        except ValidationError as error:
            missing = (error.errors()[0]["msg"].removeprefix("Value error, "),)
    if layout.context > 1:
        keys["context_parallel_degree"] = layout.context
    return TrainSection(
        toml=tomli_w.dumps(tables).strip(),
        recipe=recipe,
        differs=differs,
        missing=missing,
        torchrun=torchrun(cluster),
    )


def torchrun(cluster: Cluster) -> str:
    """Return the line that starts a training on each machine of a cluster."""
    per_node = min(cluster.chips_per_node, cluster.num_chips)
    where = "--standalone"
    if (nodes := cluster.num_chips // per_node) > 1:
        where = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29500"
    return f"torchrun {where} --nproc-per-node {per_node} -m whet train CONFIG.toml"


def plan_keys(layout: Layout) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Return the keys of [parallel], the techniques of the recipe, and what whet does otherwise."""
    keys: dict[str, Any] = {}
    recipe, differs, stage = list[str](), list[str](), layout.zero_stage
    is_divided = layout.tensor * layout.pipeline > 1
    if stage == 1 and is_divided:
        stage = 2
        differs.append("zero_stage 2 in the place of 1, which whet takes for whole models alone: it needs less memory")
    if stage == 0 and layout.pipeline > 1 and layout.precision == "bfloat16":
        stage = 2
        differs.append("zero_stage 2 in the place of 0, with which whet's pipelines compute in bfloat16")
    if layout.tensor > 1:
        keys["tensor_parallel_degree"] = layout.tensor
    if layout.pipeline > 1:
        keys["pipeline_parallel_degree"] = layout.pipeline
        keys["pipeline_schedule"] = "1f1b" if layout.virtual_stages == 1 else "interleaved_1f1b"
        if layout.virtual_stages > 1:
            keys["stages_per_rank"] = layout.virtual_stages
        if layout.recompute == "full":
            keys["checkpointing"] = "blocks"
    elif layout.recompute == "full":
        recipe.append("checkpointing")
    keys["zero_stage"] = stage
    if stage >= 2:
        shard = layout.shard if layout.zero_stage >= 2 else layout.data
        keys["data_parallel_replicate_degree"], keys["data_parallel_shard_degree"] = layout.data // shard, shard
        if layout.precision != "float32":
            keys |= {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
        if layout.offload:
            keys["offload"] = "parameters"
            differs.append("offload takes parameters and gradients too, which whet keeps in host memory with the state")
    elif layout.precision == "bfloat16":
        recipe.append("autocast")
    if layout.precision == "fp8":
        recipe.append("fp8")
    if layout.optimizer in _OTHER:
        recipe.append(layout.optimizer)
    if layout.compiled and layout.pipeline == 1:
        recipe.append("compile")
    elif layout.compiled:
        differs.append("the stages of a pipeline are not compiled, so that a step takes longer")
    return keys, tuple(recipe), tuple(differs)
