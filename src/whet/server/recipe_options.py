"""What a recipe says about how to serve: precision and threads. The engine has its own way of all the rest.

Weights in int8 and int4 are the ones that the technique makes; whet.kernels.linear.quantise rounds both. The groups of
an int4 step are always of 32 inputs, whatever an older recipe says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from whet.models.options import Dtype, WeightBits
from whet.recipe import Recipe, Step

_RESTS: Mapping[object, Dtype] = {"bfloat16": "bf16", "float32": "fp32"}
_WEIGHTS: Mapping[str, WeightBits] = {"int8_weight": "int8", "int4_weight": "int4"}


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Engine options that a recipe has; None where it has not. left_out: for each other step, why it is not taken."""

    dtype: Dtype | None = None
    weights: WeightBits | None = None
    num_threads: int | None = None
    left_out: tuple[str, ...] = ()


def from_recipe(recipe: Recipe) -> RecipeOptions:
    """What of a recipe an engine can follow."""
    dtype: Dtype | None = None
    weights: WeightBits | None = None
    num_threads: int | None = None
    left_out = []
    for step in recipe:
        if step.technique == "bf16":
            dtype = "bf16"
        elif step.technique in _WEIGHTS:
            dtype, weights = _RESTS.get(step.options.get("rest"), dtype), _WEIGHTS[step.technique]
        elif step.technique == "threads" and isinstance(step.options.get("num_threads"), int):
            num_threads = int(step.options["num_threads"])
        else:
            left_out.append(_why_not(step))
    return RecipeOptions(dtype=dtype, weights=weights, num_threads=num_threads, left_out=tuple(left_out))


def _why_not(step: Step) -> str:
    return f"{step} of the recipe is left out: the engine runs the model with kernels of its own"
