"""Which recipe is tried next: by bounds, by bytes, and by what rejected recipes lack."""

from functools import partial

import pytest
from fake_results import LIMITS
from fake_search import applicable, techniques

from whet.core.recipe import Step
from whet.techniques.costs.memory import StepMemory
from whet.techniques.costs.saved_activations import SavedActivations
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.training import TRAINING_TABLE
from whet.tuner.goal import Goal, ranked
from whet.tuner.plan import compile_only, complete, next_recipe
from whet.tuner.records import TrialRecord
from whet.tuner.space import ApplicableTechnique, Space
from whet.tuner.training.examination import _variant
from whet.tuner.training.facts import TrainingFacts
from whet.tuner.training.space import COMPILE, worth_trying
from whet.tuner.untried import untried


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


def test_of_what_is_too_slow_that_which_misses_the_limit_least_is_mended_first() -> None:
    goal = Goal("memory", limits_slowdown=True)
    found = [
        applicable("chunked_loss", bounds=[1.02], shrink=2.5),
        applicable("accumulation", "gradients", shrink=2.9),
        applicable("adafactor", "optimizer", bounds=[1.03], shrink=1.07),
    ]
    space = Space(found, TRAINING_TABLE, Step(technique="compile"), original_bytes=1000)

    def slow(number: int, *names: str, peak_bytes: int, speedup: float) -> TrialRecord:
        steps = complete(space, [Step(technique=name) for name in names]).steps
        lost = {"status": "rejected", "rejected_for": "slowdown"}
        return small(number, *names, peak_bytes=peak_bytes, speedup=speedup).model_copy(update={**lost, "steps": steps})

    records = [
        small(0, "chunked_loss", peak_bytes=870, speedup=1.1),
        slow(1, "accumulation", peak_bytes=350, speedup=0.71),
        slow(2, "chunked_loss", "accumulation", peak_bytes=330, speedup=0.66),
    ]
    recipe = next_recipe(space, records, goal)
    assert recipe is not None
    assert {step.technique for step in recipe} == {"accumulation", "adafactor"}, "not the smallest, which is slower"


def checkpointing(*blocks: int) -> Space:
    """Checkpoints of blocks that were seen to save so many bytes, three quarters of them by products; and autocast."""
    saved = SavedActivations(blocks=blocks, products=tuple(3 * size // 4 for size in blocks))
    memory = StepMemory(
        peak_bytes=1000, parameter_bytes=100, gradient_bytes=100, optimizer_bytes=200, other_bytes=600, saved=saved
    )
    technique = TRAINING_TABLE["checkpointing"]
    make = partial(_variant, technique, profile=StepProfile(total_s=1.0), memory=memory, limits=LIMITS)
    found = [
        ApplicableTechnique.of(technique, {**technique.space, "every": (1, 2, 3, 4, 6)}, "", make),
        applicable("autocast", "precision", bounds=[4.0]),
    ]
    return Space(found, TRAINING_TABLE, Step(technique="compile"), original_bytes=1000)


@pytest.mark.parametrize(
    ("blocks", "limit", "options"),
    [
        ((40,) * 12, 930, {"every": 6, "keep": "inputs"}),  # 2 of 12 blocks: 920 bytes are left
        ((40,) * 12, 900, {"every": 1, "keep": "products"}),  # 890
        ((40,) * 12, 885, {"every": 4, "keep": "inputs"}),  # 3 blocks: 880
        ((40,) * 12, 850, {"every": 3, "keep": "inputs"}),  # 4: 840
        ((40,) * 12, 770, {"every": 2, "keep": "inputs"}),  # 6: 760
        ((40,) * 12, 600, {"every": 1, "keep": "inputs"}),  # all: 560
        ((40,) * 12, 500, {"every": 1, "keep": "inputs"}),  # none fits
        ((40,) * 12, 1000, {"every": 1, "keep": "inputs"}),  # the original fits: the smallest is asked for
        ((40,) * 12, None, {"every": 1, "keep": "inputs"}),
        ((100, 5, 5, 100, 90, 90), 802, {"every": 3, "keep": "inputs"}),  # 800; 805 for 2, and 810 for 4
        ((100, 5, 5, 100, 90, 90), 900, {"every": 6, "keep": "inputs"}),  # the first one alone
    ],
)
def test_as_few_blocks_are_computed_again_as_the_allowed_memory_needs(
    blocks: tuple[int, ...], limit: int | None, options: dict[str, object]
) -> None:
    goal = Goal("memory", max_memory_bytes=limit)
    recipe = next_recipe(checkpointing(*blocks), [], goal)
    assert recipe is not None and list(recipe) == [Step(technique="checkpointing", options=options)]


def test_what_is_fast_and_needs_too_much_memory_is_tried_with_what_saves_enough() -> None:
    goal = Goal("throughput", max_memory_bytes=770)
    space = checkpointing(*(40,) * 12)
    assert str(next_recipe(space, [], goal)) == "autocast"
    large = small(0, "autocast", peak_bytes=900, speedup=2.0)
    large = large.model_copy(update={"status": "rejected", "rejected_for": "memory"})
    fits = "checkpointing(every=3, keep=inputs)"  # 900 bytes, of which 840 / 1000 are left
    assert str(next_recipe(space, [large], goal)) == f"autocast + {fits}"
    unlimited = Space(list(space.techniques.values()), TRAINING_TABLE, Step(technique="compile"))
    assert str(next_recipe(unlimited, [large], goal)) != f"autocast + {fits}", "of weights alone nothing is known"


def test_where_less_is_saved_than_was_foretold_more_blocks_are_computed_again() -> None:
    goal = Goal("memory", max_memory_bytes=850)
    third = Step(technique="checkpointing", options={"every": 3, "keep": "inputs"})  # 840 bytes were foretold
    large = TrialRecord(number=0, steps=[third], status="rejected", rejected_for="memory", speedup=0.9, peak_bytes=900)
    recipe = next_recipe(checkpointing(*(40,) * 12), [large], goal)
    assert str(recipe) == "checkpointing(every=2, keep=inputs)"  # 760 / 840 of 900


@pytest.mark.parametrize(
    ("goal", "names"),
    [
        (Goal("throughput"), {"autocast"}),
        (Goal("throughput", max_memory_bytes=1000), {"autocast"}),
        (Goal("throughput", max_memory_bytes=999), {"autocast", "checkpointing"}),
        (Goal("memory"), {"autocast", "checkpointing"}),
    ],
)
def test_what_saves_memory_is_tried_where_it_is_needed(goal: Goal, names: set[str]) -> None:
    """What neither saves any nor is faster, such as another optimiser of the same size, is never tried."""
    entries = [*checkpointing(*(40,) * 12).techniques.values(), applicable("lamb", "optimizer")]
    memory = StepMemory(peak_bytes=1000, parameter_bytes=100, gradient_bytes=100, optimizer_bytes=200, other_bytes=600)
    facts = TrainingFacts.model_construct(applicable=tuple(entries), memory=memory)
    assert worth_trying(facts.applicable, goal, facts.memory.peak_bytes).techniques.keys() == names
    whole = Space(facts.applicable, TRAINING_TABLE, COMPILE, facts.memory.peak_bytes)
    told = {one.technique: one.reason for one in untried(goal, whole, [])}
    if not goal.asks_for_speed:
        assert told["lamb"] == "it neither saves memory nor makes a step faster"


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


def test_without_time_for_a_compiler_what_runs_one_is_left_to_a_longer_search() -> None:
    space = Space([applicable("inductor", "backend", bounds=[3.0]), applicable("threads", bounds=[1.5])])
    first = next_recipe(space, [], Goal(), with_reference=False)
    assert first is not None and first.steps[0].technique == "inductor"
    quick = next_recipe(space, [], Goal(), with_reference=False, may_compile=False)
    assert quick is not None and quick.steps[0].technique == "threads"
    done = TrialRecord(number=0, steps=quick.steps, status="done", speedup=1.2)
    assert next_recipe(space, [done], Goal(), with_reference=False, may_compile=False) is None, "the finals come now"
    failed = TrialRecord(number=0, steps=quick.steps, status="failed")
    left = next_recipe(space, [failed], Goal(), with_reference=False, may_compile=False)
    assert left is not None and left.steps[0].technique == "inductor", "nothing else could be proved"


def measured(space: Space, number: int, speedup: float, *names: str) -> TrialRecord:
    steps = complete(space, [Step(technique=name) for name in names]).steps
    return TrialRecord(number=number, steps=steps, status="done", speedup=speedup)


def test_two_techniques_are_tried_at_once_where_neither_gains_alone() -> None:
    found = [
        applicable("prefetch", bounds=[1.5]),
        applicable("threads", bounds=[1.4]),
        applicable("fused_optimizer", "optimizer", bounds=[1.1]),
        applicable("allocator", bounds=[1.05]),
    ]
    space = Space(found, TRAINING_TABLE, Step(technique="compile"))
    alone = [measured(space, i, 0.9, name) for i, name in enumerate(("prefetch", "threads", "allocator"))]
    best = measured(space, 3, 1.05, "fused_optimizer")
    added = [
        measured(space, 4 + i, 0.9, "fused_optimizer", record.steps[0].technique) for i, record in enumerate(alone)
    ]
    recipe = next_recipe(space, [*alone, best, *added], Goal())
    assert recipe is not None
    assert {step.technique for step in recipe} == {"fused_optimizer", "prefetch", "threads"}, "the largest promise"


@pytest.mark.parametrize(("speedup", "is_tried"), [(4.2, True), (3.0, False)])
def test_what_joins_the_best_joins_another_backend_that_is_as_fast(speedup: float, *, is_tried: bool) -> None:
    found = [
        applicable("openvino", "backend", "precision", bounds=[6.0]),
        applicable("onnxruntime", "backend", "precision", bounds=[6.0]),
        applicable("fuse_conv_bn", bounds=[1.1]),
    ]
    space = Space(found)
    records = [
        measured(space, 0, 4.3, "openvino"),
        measured(space, 1, speedup, "onnxruntime"),
        measured(space, 2, 4.4, "fuse_conv_bn", "openvino"),
        measured(space, 3, 1.0, "fuse_conv_bn"),
    ]
    recipe = next_recipe(space, records, Goal())
    joined = recipe is not None and {step.technique for step in recipe} == {"fuse_conv_bn", "onnxruntime"}
    assert joined == is_tried
