"""Verdicts: each bound from the facts that show it, and the sentences that people read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.measure.machine import Limits
from whet.measure.source_location import Line
from whet.profiling.bounds import ADVICE, Bound
from whet.profiling.model import LayerCost, Profile
from whet.profiling.model.leaks import Leak
from whet.profiling.model.operators import OperatorCost, Operators
from whet.profiling.model.sections import SectionCost
from whet.profiling.model.verdict import BlockFacts, Hint, block_verdict, model_verdict

LIMITS = Limits(read_bandwidth=1e10, gemm={"float32": 1e11}, operator_s=1e-6)
LEAK = Leak(Line("a.py", 7, "f"), "float32[10]", 2_000_000.0, 10, 20_000_000, 10, 10)


def layer(time_s: float, flops: int = 0, weight_bytes: int = 0) -> LayerCost:
    return LayerCost("0", "Linear", 1, time_s, flops, weight_bytes, 0, 1)


def section(name: str, self_s: float, cpu_s: float) -> SectionCost:
    return SectionCost((name,), 1, self_s, self_s, self_s, cpu_s, cpu_s, None, 0, 0)


def facts(thread_s: float = 1.0, cpu_s: float = 1.0, cores: int = 4, **more: object) -> BlockFacts:
    return BlockFacts(wall_s=1.0, cpu_s=cpu_s, thread_s=thread_s, cores=cores, **more)  # type: ignore[arg-type]


def operators(inside_s: float, device_s: float | None = None) -> Operators:
    return Operators((OperatorCost("mm", "", 1, inside_s, inside_s),), 1.0, inside_s, device_s, 5 * 10**10)


def test_a_model_far_from_the_limit() -> None:
    profile = Profile(0.04, (layer(0.04, flops=10**9),))
    verdict = model_verdict(
        profile, LIMITS, hints=[Hint("bf16", 1.5), Hint("inductor", 3.0), Hint("threads", 1.01)], target="t"
    )
    assert verdict.bound == Bound.COMPUTE
    assert verdict.share_of_limit == pytest.approx(0.25)
    assert "10.0 ms" in verdict.text and "40.0 ms" in verdict.text and "4.00 times" in verdict.text
    assert [h.technique for h in verdict.hints] == ["inductor", "bf16"]
    assert "inductor (3.00×), bf16 (1.50×)" in verdict.text
    assert "`whet tune t`" in verdict.text
    assert "threads" not in verdict.text


def test_a_model_at_the_limit_and_one_that_nothing_helps() -> None:
    verdict = model_verdict(Profile(0.01, (layer(0.01, flops=2 * 10**9),)), LIMITS, hints=[Hint("bf16", 1.0)])
    assert "is this machine's limit" in verdict.text
    assert "times as long" not in verdict.text
    assert "No technique" in verdict.text


def test_a_bandwidth_bound_model() -> None:
    assert model_verdict(Profile(0.1, (layer(0.1, 10**6, 10**9),)), LIMITS).bound == "bandwidth-bound"


def test_a_model_without_any_work() -> None:
    assert model_verdict(Profile(0.0, ()), LIMITS).sentences


@pytest.mark.parametrize(
    ("given_facts", "bound", "words"),
    [
        (
            facts(thread_s=0.2, sections=(section("io", 0.9, 0.1), section("go", 0.1, 0.1))),
            Bound.WAITING,
            "section 'io'",
        ),
        (facts(thread_s=0.2, cpu_s=1.9, cores=2), Bound.WAITING, "80%"),  # threads that spin do not hide it
        (facts(operators=operators(0.3)), Bound.OVERHEAD, "70%"),
        (facts(operators=operators(0.3), memory_watched=True), Bound.ONE_CORE, "cores busy"),
        (
            facts(sections=(section("io", 0.5, 0.1), section("go", 0.4, 0.4))),
            Bound.ONE_CORE,
            "80% of it is waiting",
        ),
        (facts(), Bound.ONE_CORE, "1.00 of its 4 cores"),
        (facts(cores=1), Bound.COMPUTE, "cores"),
        (facts(cpu_s=3.8), Bound.COMPUTE, "3.80 of its 4"),
        (facts(on_gpu=True), Bound.UNKNOWN, "operators=True"),
        (facts(operators=operators(0.5, device_s=0.2), on_gpu=True), Bound.OVERHEAD, "20%"),
        (facts(operators=operators(0.5, device_s=0.9), on_gpu=True), Bound.COMPUTE, "90%"),
        (facts(leaks=(LEAK,)), Bound.MEMORY_GROWING, "2.00 MB a step; look first at a.py:7 (f)"),
    ],
)
def test_blocks(given_facts: BlockFacts, bound: Bound, words: str) -> None:
    verdict = block_verdict(given_facts)
    assert verdict.bound is bound
    assert words in verdict.text
    assert bound is Bound.UNKNOWN or ADVICE[bound][1:] in verdict.text
    assert verdict.share_of_limit is None


def test_a_block_with_limits_has_a_share_of_them() -> None:
    assert block_verdict(facts(operators=operators(0.9)), LIMITS).share_of_limit == pytest.approx(0.5)


def test_nothing_measured() -> None:
    assert block_verdict(BlockFacts(0.0, 0.0, 0.0, 2)).bound == Bound.UNKNOWN
    assert "too short" in block_verdict(BlockFacts(8e-6, 7e-6, 7e-6, 2)).text


@given(
    thread_s=st.floats(0, 1), cpu_s=st.floats(0, 64), cores=st.integers(1, 64), on_gpu=st.booleans(),
    inside_s=st.none() | st.floats(0, 1), leaks=st.sampled_from([(), (LEAK,)]),
)  # fmt: skip
def test_any_facts_have_a_verdict(
    thread_s: float, cpu_s: float, cores: int, on_gpu: bool, inside_s: float | None, leaks: tuple[Leak, ...]
) -> None:
    found = None if inside_s is None else operators(inside_s, device_s=inside_s if on_gpu else None)
    verdict = block_verdict(facts(thread_s, cpu_s, cores, on_gpu=on_gpu, operators=found, leaks=leaks), LIMITS)
    assert verdict.bound and all(verdict.sentences)
    assert "nan" not in verdict.text


def test_a_disturbed_pass_gives_no_gains() -> None:
    profile = Profile(4.0, (layer(4.0, 10**6, 10**6),))
    verdict = model_verdict(profile, LIMITS, hints=[Hint("bf16", 526.0)], target="t", is_disturbed=True)
    assert "Techniques that address it here: bf16 (gains not given: the machine was busy)." in verdict.text
    assert "526" not in verdict.text
    assert verdict.hints == ()
    assert "at below 1% of the memory bandwidth" in verdict.text
    nothing = model_verdict(profile, LIMITS, hints=[Hint("bf16", 1.0)], is_disturbed=True)
    assert "No technique" not in nothing.text
