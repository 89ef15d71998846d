"""Read engine options from a recipe: precision and threads. For all other steps, the engine has its own methods.

The engine's int8 and int4 weights equal those of the techniques; whet.kernels.linear.quantise rounds both. A group of
int4 weights always has 32 inputs, even if an older recipe states another size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from whet.core.recipe import Recipe, Step
from whet.models.options import Dtype, WeightBits

_RESTS: Mapping[object, Dtype] = {"bfloat16": "bf16", "float32": "fp32"}
_WEIGHTS: Mapping[str, WeightBits] = {"int8_weight": "int8", "int4_weight": "int4"}


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Hold a recipe's engine options, None for what it does not state. `left_out` says why steps are not followed."""

    dtype: Dtype | None = None
    weights: WeightBits | None = None
    num_threads: int | None = None
    left_out: tuple[str, ...] = ()


def from_recipe(recipe: Recipe) -> RecipeOptions:
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
