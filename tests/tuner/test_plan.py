"""Which recipe is tried next: by bounds, by bytes, and by what rejected recipes lack."""

import pytest
from fake_search import applicable, techniques

from whet.recipe import Step
from whet.techniques.training import TRAINING_TABLE
from whet.tuner.goal import Goal, ranked
from whet.tuner.plan import compile_only, complete, next_recipe
from whet.tuner.records import TrialRecord
from whet.tuner.space import Space


def test_a_technique_that_cannot_win_alone_waits() -> None:
    space = Space(techniques())
    fast = TrialRecord(
        number=1, steps=[Step(technique="openvino")], status="done", speedup=6.0, speedup_ci95=(5.9, 6.1)
    )
    first = TrialRecord(
        number=0,
        steps=list(complete(space, [Step(technique="inductor", options={"engine": "jit", "freezing": False})])),
        status="done",
        speedup=1.0,
    )
    int8 = TrialRecord(
        number=2,
        steps=list(complete(space, [Step(technique="int8_static"), Step(technique="inductor")])),
        status="failed",
    )
    openvino = TrialRecord(number=3, steps=list(complete(space, [Step(technique="openvino")])), status="failed")
    recipe = next_recipe(space, [first, fast, int8, openvino], Goal())
    assert recipe is not None
    assert str(recipe) != "bf16", "its bound of 4 is below the 6 already measured"


@pytest.mark.parametrize(("objective", "first"), [("latency", "int8_static"), ("size", "bf16"), ("memory", "bf16")])
def test_where_bytes_are_asked_for_the_smallest_weights_come_first(objective: str, first: str) -> None:
    found = [
        applicable("channels_last", bounds=[9.0]),
        applicable("int8_static", "precision", bounds=[8.0]),
        applicable("bf16", "precision", bounds=[1.5], shrink=2.0),
    ]
    found = found[0 if objective == "size" else 1 :]
    recipe = next_recipe(Space(found), [], Goal(objective))  # type: ignore[arg-type]
    assert recipe is not None and recipe.steps[0].technique == first


def small_training_space() -> Space:
    found = [
        applicable("autocast", "precision", bounds=[4.0], shrink=1.5),
        applicable("bf16_parameters", "precision", bounds=[3.0], shrink=1.8),
        applicable("checkpointing", "activations", shrink=3.0),
        applicable("adafactor", "optimizer", shrink=1.2),
        applicable("product_attention", bounds=[1.3]),
    ]
    return Space(found, TRAINING_TABLE, Step(technique="compile"), original_bytes=1000)


def small(number: int, *names: str, peak_bytes: int, speedup: float = 1.0) -> TrialRecord:
    steps = [Step(technique=name) for name in names]
    return TrialRecord(number=number, steps=steps, status="done", speedup=speedup, peak_bytes=peak_bytes)


def next_names(records: list[TrialRecord], goal: Goal) -> set[str]:
    recipe = next_recipe(small_training_space(), records, goal)
    assert recipe is not None
    return {step.technique for step in recipe}


def test_what_can_save_most_memory_comes_first_and_what_saves_less_than_is_saved_waits() -> None:
    goal = Goal("memory")
    assert next_names([], goal) == {"checkpointing"}
    assert next_names([small(0, "checkpointing", peak_bytes=700)], goal) == {"bf16_parameters"}, "1.8 is above 1000/700"
    both = [small(0, "checkpointing", peak_bytes=500), small(1, "bf16_parameters", peak_bytes=800)]
    assert next_names(both, goal) == {"checkpointing", "bf16_parameters"}


def test_where_speed_is_asked_for_as_well_what_gives_it_comes_first() -> None:
    goal = Goal("memory", max_slowdown=0.5)
    assert next_names([], goal) == {"autocast"}
    fast = small(0, "autocast", peak_bytes=800, speedup=2.5)
    assert next_names([fast], goal) == {"bf16_parameters"}, "checkpointing alone cannot be fast enough"
    found = next_names([fast, small(1, "bf16_parameters", peak_bytes=600, speedup=2.4)], goal)
    assert found == {"bf16_parameters", "checkpointing"}


def test_what_is_smaller_but_too_slow_is_tried_with_what_is_faster() -> None:
    goal = Goal("memory", max_slowdown=0.5)
    kept = [small(0, "autocast", peak_bytes=800, speedup=2.5), small(1, "bf16_parameters", peak_bytes=600, speedup=2.4)]
    slow = small(2, "checkpointing", "bf16_parameters", peak_bytes=400, speedup=1.9)
    slow = slow.model_copy(update={"status": "rejected", "rejected_for": "slowdown"})
    assert next_names([*kept, slow], goal) == {"bf16_parameters", "checkpointing", "product_attention"}
    larger = slow.model_copy(update={"peak_bytes": 900})
    assert next_names([*kept, larger], goal) == {"bf16_parameters", "adafactor"}


def test_an_option_that_saves_more_comes_before_further_techniques() -> None:
    bf16 = applicable("bf16_parameters", "precision", options={"update": ["masters", "stochastic"]}, shrink=1.8)
    least = bf16.variants[1].model_copy(update={"shrink": 2.5})
    found = [bf16.model_copy(update={"variants": (bf16.variants[0], least)}), applicable("adafactor", "optimizer")]
    space = Space(found, TRAINING_TABLE, Step(technique="compile"), original_bytes=1000)
    done = TrialRecord(number=0, steps=[bf16.default], status="done", speedup=2.0, peak_bytes=400)
    recipe = next_recipe(space, [done], Goal("memory"))
    assert recipe is not None and list(recipe) == [least.step]


def test_the_smallest_is_built_upon_where_size_is_asked_for() -> None:
    """Though another is faster."""
    space = Space(techniques())
    fast = TrialRecord(number=0, steps=[Step(technique="fuse_qkv")], status="done", speedup=6.0, size_bytes=100)
    small = TrialRecord(number=1, steps=[Step(technique="bf16")], status="done", speedup=2.0, size_bytes=50)
    tried = [complete(space, [Step(technique="inductor", options={"engine": "jit", "freezing": False})])]
    done = [
        fast,
        small,
        *(TrialRecord(number=2 + i, steps=list(recipe), status="failed") for i, recipe in enumerate(tried)),
    ]
    for objective, base in (("latency", "fuse_qkv"), ("size", "bf16")):
        found = {r.label for r in ranked(Goal(objective), done)[:1]}  # type: ignore[arg-type]
        assert found == {base}
    recipe = next_recipe(space, done, Goal("size"))
    assert recipe is not None and "bf16" in {step.technique for step in recipe}


def test_torch_compile_alone_is_left_out_where_it_cannot_be_loaded() -> None:
    """As with a compiler but without Python's headers: packages can be made, torch.compile alone cannot."""
    space = Space([applicable("inductor", "backend", options={"engine": ["package"]})])
    assert compile_only(space) is None
    recipe = next_recipe(space, [], Goal())
    assert str(recipe) == "inductor(engine=package)"


def test_what_was_rejected_for_its_memory_is_not_given_quality_back() -> None:
    space = Space(techniques())
    done = [
        TrialRecord(number=n, steps=list(complete(space, [Step(technique=name)])), status="failed")
        for n, name in enumerate(("openvino", "bf16", "fuse_qkv", "channels_last", "inductor"))
    ]
    reference = compile_only(space)
    assert reference is not None
    done.append(TrialRecord(number=5, steps=list(reference), status="done", speedup=8.5))
    lossy = TrialRecord(
        number=6,
        steps=list(complete(space, [Step(technique="int8_static"), Step(technique="inductor")])),
        status="rejected",
        speedup=8.8,
        drop=0.0,
    )
    for peak_bytes, restores in ((None, True), (2**30, False)):
        record = TrialRecord.model_validate({**lossy.model_dump(exclude={"rejected_for"}), "peak_bytes": peak_bytes})
        recipe = next_recipe(space, [*done, record], Goal())
        assert recipe is not None
        assert ("keep_precision" in {step.technique for step in recipe}) is restores
