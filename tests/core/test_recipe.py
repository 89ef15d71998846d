"""Recipes through TOML and back, and files that are none."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import whet
from whet.core.recipe import Evidence, Recipe, Step
from whet.core.recipe_file import FILE
from whet.errors import OutputError, RecipeError

values = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
steps = st.builds(
    Step, technique=st.text(max_size=10), options=st.dictionaries(st.text(max_size=8), values, max_size=4)
)
recipes = st.builds(
    Recipe,
    target=st.text(max_size=20),
    fingerprint=st.text("0123456789abcdef", max_size=8),
    machine=st.dictionaries(st.text(max_size=8), values | st.lists(st.text(max_size=5), max_size=3), max_size=3),
    versions=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    steps=st.lists(steps, max_size=4),
)

EVIDENCE = Evidence(
    verdict="gain",
    objective="latency",
    speedup=2.5,
    speedup_ci95=(2.4, math.inf),
    baseline_latency_ms=10,
    latency_ms=4,
    num_pairs=8,
    quality_name="accuracy",
    quality_baseline=0.98,
    quality=0.975,
    max_drop=0.01,
    size_bytes_baseline=4000,
    size_bytes=1000,
    peak_bytes_baseline=1,
    peak_bytes=2,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipe") / FILE


def kinds(recipe: Recipe) -> list[type]:
    """Types of the options: 1, 1.0 and True are equal and not the same."""
    return [type(value) for step in recipe for value in step.options.values()]


@given(recipes)
def test_what_is_written_is_read(path: Path, recipe: Recipe) -> None:
    recipe.write(path)
    again = Recipe.read(path)
    assert again == recipe
    assert kinds(again) == kinds(recipe)
    assert again.key == recipe.key
    first = path.read_bytes()
    again.write(path)
    assert path.read_bytes() == first


def test_an_empty_file_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("\n# nothing\n")
    with pytest.raises(RecipeError, match="is empty; give a recipe"):
        Recipe.read(tmp_path / "recipe.toml")


def test_a_full_recipe_is_toml_that_people_can_read(path: Path) -> None:
    step = Step(technique="int8_static", options={"calibration": "entropy", "per_channel": True, "bits": 8})
    recipe = Recipe(target="digits-cnn", fingerprint="abc", evidence=EVIDENCE, steps=[step, Step(technique="inductor")])
    recipe.write(path)
    text = path.read_text()
    assert text.startswith("# Written by whet.")
    data = tomllib.loads(text)
    assert data["format"] == 1
    assert data["evidence"]["speedup"] == 2.5
    assert data["steps"][0] == {"technique": "int8_static", "options": step.options}
    assert Recipe.read(path) == recipe
    assert str(recipe) == "int8_static(calibration=entropy, per_channel=true, bits=8) + inductor"
    assert str(Recipe()) == "original"


def read(path: Path, text: str) -> Recipe:
    path.write_text(text, encoding="utf-8")
    return Recipe.read(path)


def test_a_recipe_may_be_short(path: Path) -> None:
    recipe = read(path, '[[steps]]\ntechnique = "bf16"\n')
    assert [str(step) for step in recipe] == ["bf16"]
    assert recipe.evidence is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = ", "cannot be read as a recipe"),
        ("[[steps]\n", "cannot be read as a recipe"),
        ("format = 2\n[new]\nthing = 1\n", "has format 2; this whet reads format 1: install a newer whet"),
        ("formt = 1\n", "is not a valid recipe: formt"),
        ('[[steps]]\ntechnique = "bf16"\nspeed = 3\n', r"is not a valid recipe: steps\.0\.speed"),
        ("[[steps]]\noptions = {}\n", r"is not a valid recipe: steps\.0\.technique"),
        ('[[steps]]\ntechnique = "a"\noptions = { x = [1] }\n', r"is not a valid recipe: steps\.0\.options\.x"),
        ('steps = "bf16"\n', "is not a valid recipe: steps"),
        ('[evidence]\nverdict = "gain"\n', r"is not a valid recipe: evidence\.\w+"),
    ],
)
def test_a_damaged_recipe_says_what_is_wrong(path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        read(path, text)
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist; `whet tune` writes one"):
        Recipe.read(tmp_path / "none.toml")
    with pytest.raises(RecipeError, match=r"recipe.toml does not exist"):
        Recipe.read(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot be read as a recipe"):
        Recipe.read(tmp_path / "binary.toml")


def test_a_recipe_for_a_training_is_not_taken_for_calls(tmp_path: Path) -> None:
    recipe = Recipe(kind="training", steps=(Step(technique="autocast"),))  # a technique of both kinds
    recipe.write(tmp_path / "recipe.toml")
    assert Recipe.read(tmp_path).checked_for("training") == recipe
    with pytest.raises(RecipeError, match="for a training loop, not for calls"):
        whet.apply_recipe(tmp_path, "digits-cnn", tmp_path / "out")
    with pytest.raises(RecipeError, match="for a training loop, not for calls"):
        whet.apply(recipe, torch.nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(RecipeError, match="for calls of a model, not for a training loop"):
        Recipe(steps=recipe.steps).checked_for("training")
    assert Recipe(kind="training").checked_for("inference").steps == ()


def test_the_directory_of_a_tuning_run_stands_for_its_recipe(tmp_path: Path) -> None:
    Recipe(steps=(Step(technique="bf16"),)).write(tmp_path / "recipe.toml")
    assert str(Recipe.read(tmp_path)) == "bf16"


def test_a_recipe_cannot_be_written_into_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        Recipe().write(tmp_path / "missing" / FILE)


@given(st.lists(steps, max_size=3), st.lists(steps, max_size=3))
def test_keys_are_equal_exactly_when_steps_are(first: list[Step], second: list[Step]) -> None:
    same = [(s.technique, s.options) for s in first] == [(s.technique, s.options) for s in second]
    if same and kinds(Recipe(steps=first)) != kinds(Recipe(steps=second)):
        return  # 1 == True in Python, and not to a technique
    assert (Recipe(steps=first).key == Recipe(steps=second).key) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": True}, {"a": "true"}),
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": "1, b=2"}, {"a": "1", "b": "2"}),
    ],
)
def test_keys_tell_options_apart_that_look_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (
        Recipe(steps=[Step(technique="t", options=one)]).key != Recipe(steps=[Step(technique="t", options=other)]).key
    )


def test_keys_do_not_depend_on_the_order_of_options_or_on_the_evidence() -> None:
    one = Recipe(steps=[Step(technique="t", options={"a": 1, "b": 2})], evidence=EVIDENCE, target="x")
    other = Recipe(steps=[Step(technique="t", options={"b": 2, "a": 1})])
    assert one.key == other.key
    turned = [Step(technique="s"), Step(technique="t")]
    assert Recipe(steps=turned).key != Recipe(steps=turned[::-1]).key
