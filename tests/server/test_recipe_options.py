"""What serving takes from a recipe."""

from typing import Any

import pytest

from whet.core.recipe import Recipe, Step
from whet.server.recipe_options import from_recipe


def recipe(**steps: dict[str, Any]) -> Recipe:
    return Recipe(steps=[Step(technique=name, options=options) for name, options in steps.items()])


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (recipe(), (None, None, None)),
        (recipe(bf16={}), ("bf16", None, None)),
        (recipe(int8_weight={"rest": "float32"}), ("fp32", "int8", None)),
        (recipe(int8_weight={"rest": "bfloat16"}, threads={"num_threads": 1}), ("bf16", "int8", 1)),
        (recipe(int4_weight={"group_size": 32, "rest": "bfloat16"}), ("bf16", "int4", None)),
        (recipe(int8_weight={}), (None, "int8", None)),
    ],
)
def test_precision_and_threads_are_taken(found: Recipe, wanted: tuple[object, ...]) -> None:
    options = from_recipe(found)
    assert (options.dtype, options.weights, options.num_threads) == wanted
    assert options.left_out == ()


def test_what_is_left_out_is_said() -> None:
    options = from_recipe(recipe(fuse_qkv={}, bf16={}, inductor={"mode": "default"}))
    assert options.dtype == "bf16"
    assert [line.partition(" of the recipe is left out")[0] for line in options.left_out] == [
        "fuse_qkv",
        "inductor(mode=default)",
    ]
