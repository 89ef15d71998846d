"""What bounds a model: examples worked out by hand, and what must hold for every profile and machine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.measure.machine import Limits
from whet.profiling.model import Bound, LayerCost, Profile, attainable_s, diagnose, layer_bound, speedup_bound

# A round machine: 1 TFLOP/s in float32, 4 in bfloat16, 100 GB/s from memory, 1 µs an operator.
MACHINE = Limits(read_bandwidth=100e9, gemm={"float32": 1e12, "bfloat16": 4e12}, operator_s=1e-6)


def layer(kind: str, time_s: float, **facts: int) -> LayerCost:
    given = {"flops": 0, "weight_bytes": 0, "activation_bytes": 0, "num_operators": 1, **facts}
    return LayerCost(name=kind.lower(), kind=kind, calls=1, time_s=time_s, **given)  # type: ignore[arg-type]


# 4 ms of arithmetic; 0.2 ms of bytes; twice as slow as it could be
LINEAR = layer("Linear", 8e-3, flops=4 * 10**9, weight_bytes=15 * 10**6, activation_bytes=5 * 10**6)
# 0.5 ms of bytes, four times as slow
NORM = layer("LayerNorm", 2e-3, activation_bytes=50 * 10**6)
# a hundred operators on next to nothing
GLUE = layer("Glue", 1e-3, activation_bytes=1000, num_operators=100)
PROFILE = Profile(total_s=11e-3, layers=(LINEAR, NORM, GLUE))


def test_attainable_by_hand() -> None:
    assert attainable_s(LINEAR, MACHINE) == pytest.approx(4e-3)
    assert attainable_s(LINEAR, MACHINE, dtype="bfloat16") == pytest.approx(1e-3)
    assert attainable_s(NORM, MACHINE) == pytest.approx(0.5e-3)
    assert attainable_s(NORM, MACHINE, activation_scale=0.5) == pytest.approx(0.25e-3)
    memory_bound = replace(LINEAR, flops=10**6)
    assert attainable_s(memory_bound, MACHINE) == pytest.approx(0.2e-3)
    assert attainable_s(memory_bound, MACHINE, weight_scale=0.25, activation_scale=0.5) == pytest.approx(0.0625e-3)


def test_bounds_by_hand() -> None:
    assert layer_bound(LINEAR, MACHINE) is Bound.COMPUTE
    assert layer_bound(LINEAR, MACHINE, dtype="bfloat16") is Bound.COMPUTE
    assert layer_bound(replace(LINEAR, flops=10**6), MACHINE) is Bound.BANDWIDTH
    assert layer_bound(NORM, MACHINE) is Bound.BANDWIDTH
    assert layer_bound(GLUE, MACHINE) is Bound.OVERHEAD
    # 2 µs of bytes, but 15 µs measured: calls cost about that
    assert layer_bound(layer("Small", 15e-6, activation_bytes=200_000), MACHINE) is Bound.OVERHEAD
    # the same work in 1 ms is no matter of calls: the kernel is slow
    assert layer_bound(layer("Slow", 1e-3, activation_bytes=200_000), MACHINE) is Bound.BANDWIDTH


def test_diagnosis_by_hand() -> None:
    found = diagnose(PROFILE, MACHINE)
    assert found.bound is Bound.COMPUTE
    assert found.shares == pytest.approx({Bound.COMPUTE: 8 / 11, Bound.BANDWIDTH: 2 / 11, Bound.OVERHEAD: 1 / 11})
    assert found.share_of_limit == pytest.approx((4e-3 + 0.5e-3 + 1e-8) / 11e-3)
    assert found.sentence == (
        "73% of the time is in compute-bound layers (Linear), which run at 50% of the float32 limit; "
        "18% in bandwidth-bound layers (LayerNorm), which read at 25% of the memory bandwidth; "
        "9% in overhead-bound layers (Glue), where calling operators costs more than their work."
    )


def test_nothing_to_diagnose() -> None:
    for empty in (Profile(total_s=0.0), Profile(total_s=1e-3)):
        found = diagnose(empty, MACHINE)
        assert set(found.shares.values()) == {0.0}
        assert "nothing" in found.sentence
        assert speedup_bound(empty, MACHINE) == 1.0


def test_speedup_bound_by_hand() -> None:
    # all at the limit: 4 + 0.5 + 0.1 ms (a hundred operators are still called)
    assert speedup_bound(PROFILE, MACHINE) == pytest.approx(11 / 4.6)
    assert speedup_bound(PROFILE, MACHINE, dtype="bfloat16") == pytest.approx(11 / 1.6)
    # only the linear layers
    assert speedup_bound(PROFILE, MACHINE, dtype="bfloat16", kinds=frozenset({"Linear"})) == pytest.approx(11 / 4)
    assert speedup_bound(PROFILE, MACHINE, kinds=frozenset({"Conv2d"})) == 1.0
    # fused: what multiplies nothing disappears into its neighbours
    assert speedup_bound(PROFILE, MACHINE, removes_overhead=True) == pytest.approx(11 / 4)
    # smaller weights do not help a layer that waits for arithmetic
    assert speedup_bound(PROFILE, MACHINE, weight_scale=0.25) == pytest.approx(11 / 4.6)


def test_weights_that_stay_in_a_cache_are_read_from_it() -> None:
    machine = replace(MACHINE, cached_bandwidth=((10**6, 1000e9), (10**7, 400e9)))
    weights = layer("Linear", 1e-3, flops=1, weight_bytes=10**6)
    assert attainable_s(weights, machine) == pytest.approx(1e-6)
    # part of a model of 8 MB, they come from the cache that holds 8 MB; of 80 MB, from memory
    assert attainable_s(replace(weights, model_weight_bytes=8 * 10**6), machine) == pytest.approx(1e-6)
    assert attainable_s(replace(weights, model_weight_bytes=12 * 10**6), machine) == pytest.approx(2.5e-6)
    assert attainable_s(replace(weights, model_weight_bytes=80 * 10**6), machine) == pytest.approx(10e-6)
    # in int8 the model is of 20 MB: less to read, and from the cache
    smaller = attainable_s(replace(weights, model_weight_bytes=80 * 10**6), machine, weight_scale=0.25)
    assert smaller == pytest.approx(0.25 * 2.5e-6)


def test_convolutions_on_a_gpu_may_run_in_tfloat32() -> None:
    machine = Limits(read_bandwidth=1e12, gemm={"float32": 1e12, "tfloat32": 8e12}, device="cuda")
    product = layer("Linear", 1.0, flops=8 * 10**12)
    assert attainable_s(product, machine) == pytest.approx(8.0)
    assert attainable_s(replace(product, kind="Conv2d"), machine) == pytest.approx(1.0)


layers = st.builds(
    LayerCost,
    name=st.just("x"),
    kind=st.sampled_from(["Linear", "Conv2d", "LayerNorm"]),
    calls=st.just(1),
    time_s=st.floats(0, 1),
    flops=st.integers(0, 10**12),
    weight_bytes=st.integers(0, 10**9),
    activation_bytes=st.integers(0, 10**9),
    num_operators=st.integers(0, 1000),
    model_weight_bytes=st.integers(0, 10**10),
)
profiles = st.builds(
    lambda found, more: Profile(sum(x.time_s for x in found) * more, tuple(found)),
    st.lists(layers, max_size=6),
    st.floats(0.9, 1.2),
)
rates = st.floats(1e6, 1e14)
machines = st.builds(
    lambda memory, peaks, factors, operator_s: Limits(
        memory,
        peaks,
        cached_bandwidth=tuple((10**5 << 4 * i, memory * f) for i, f in enumerate(sorted(factors, reverse=True))),
        operator_s=operator_s,
    ),
    rates,
    st.fixed_dictionaries({"float32": rates}, optional={"bfloat16": rates, "int8": rates}),
    st.lists(st.floats(1, 20), max_size=4),
    st.floats(1e-7, 1e-4),
)
options = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["float32", "bfloat16", "int8"]),
        "kinds": st.sampled_from([None, frozenset({"Linear"}), frozenset({"Linear", "LayerNorm"})]),
        "weight_scale": st.sampled_from([1.0, 0.5, 0.25]),
        "activation_scale": st.sampled_from([1.0, 0.5, 0.25]),
        "removes_overhead": st.booleans(),
    }
)


@given(profiles, machines, options)
def test_a_bound_is_finite_and_at_least_one(profile: Profile, machine: Limits, option: dict[str, object]) -> None:
    bound = speedup_bound(profile, machine, **option)  # type: ignore[arg-type]
    assert 1.0 <= bound < float("inf")


@given(profiles, machines, options, st.floats(1, 50), st.sampled_from(["float32", "bfloat16", "int8", "memory"]))
def test_a_better_machine_has_no_lower_bound(
    profile: Profile, machine: Limits, option: dict[str, object], factor: float, which: str
) -> None:
    better = (
        replace(
            machine,
            read_bandwidth=machine.read_bandwidth * factor,
            cached_bandwidth=tuple((size, speed * factor) for size, speed in machine.cached_bandwidth),
        )
        if which == "memory"
        else replace(machine, gemm={k: v * factor if k == which else v for k, v in machine.gemm.items()})
    )
    bound = speedup_bound(profile, machine, **option)  # type: ignore[arg-type]
    assert speedup_bound(profile, better, **option) >= bound * (1 - 1e-9)  # type: ignore[arg-type]


@given(profiles, machines, options)
def test_more_freedom_has_no_lower_bound(profile: Profile, machine: Limits, option: dict[str, object]) -> None:
    bound = speedup_bound(profile, machine, **option)  # type: ignore[arg-type]
    for freer in ({"kinds": None}, {"removes_overhead": True}):
        assert speedup_bound(profile, machine, **(option | freer)) >= bound * (1 - 1e-9)  # type: ignore[arg-type]


@given(profiles, machines, options, st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_no_way_to_run_the_layers_beats_the_bound(
    profile: Profile, machine: Limits, option: dict[str, object], haste: list[float]
) -> None:
    """Any times between what is attainable and what was measured, as a technique could bring, stay within the bound."""
    after_s = 0.0
    for cost, how in zip(profile.layers, haste, strict=False):
        least_s = attainable_s(
            cost,
            machine,
            dtype=option["dtype"],  # type: ignore[arg-type]
            weight_scale=option["weight_scale"],  # type: ignore[arg-type]
            activation_scale=option["activation_scale"],  # type: ignore[arg-type]
        )
        touched = option["kinds"] is None or cost.kind in option["kinds"]  # type: ignore[operator]
        calls_s = 0.0 if option["removes_overhead"] else cost.num_operators * machine.operator_s
        reached_s = max(least_s, calls_s, how * cost.time_s)
        after_s += min(cost.time_s, reached_s) if touched else cost.time_s
    before_s = sum(cost.time_s for cost in profile.layers)
    speedup = before_s / max(after_s, machine.operator_s)
    assert speedup_bound(profile, machine, **option) >= speedup * (1 - 1e-9)  # type: ignore[arg-type]


@given(layers, machines, st.sampled_from(["float32", "bfloat16"]))
def test_less_to_do_takes_no_longer(cost: LayerCost, machine: Limits, dtype: str) -> None:
    whole = attainable_s(cost, machine, dtype=dtype)
    assert whole >= cost.flops / machine.peak(dtype)
    assert whole >= attainable_s(cost, machine, dtype=dtype, weight_scale=0.5) >= 0
    assert whole >= attainable_s(cost, machine, dtype=dtype, activation_scale=0.25) >= 0
    assert whole >= attainable_s(replace(cost, flops=cost.flops // 2), machine, dtype=dtype)


@given(profiles, machines)
def test_a_diagnosis_shares_out_the_time(profile: Profile, machine: Limits) -> None:
    found = diagnose(profile, machine)
    assert 0.0 <= found.share_of_limit <= 1.0
    assert sum(found.shares.values()) == pytest.approx(1.0 if any(x.time_s for x in profile.layers) else 0.0)
    assert found.shares[found.bound] == max(found.shares.values())
    assert len(found.sentence) < 600
