"""What a trial says of a variant: outputs that are no numbers, threads, limits, and the model it belongs to."""

import re

import pytest
import targets
import torch
from fake_search import techniques

from processors import HAS_BFLOAT16, NEEDS_BFLOAT16
from whet.core.recipe import Step
from whet.core.workload import Quality, Workload, examine
from whet.measure.machine import Limits
from whet.profiling.model import Profile, profile_sizes
from whet.profiling.model.layers import LayerCost
from whet.techniques import TABLE
from whet.tuner import target_examination
from whet.tuner.agreement import agree
from whet.tuner.least_time import mean_least_time_s, recipe_time_s
from whet.tuner.records import TrialRecord
from whet.tuner.space import Space
from whet.tuner.study import Study, default_storage
from whet.tuner.target_examination import ExaminationRequest, examine_any, weights_digest
from whet.tuner.trial import judge, time_pair


@pytest.fixture(scope="module")
def examined():
    model, inputs = targets.conv()
    return examine(Workload(model=model, inputs=inputs, quality=Quality("score", lambda predict: 1.0)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_variant_that_gives_no_numbers_is_rejected_and_its_record_read_again(examined, tmp_path, bad) -> None:
    agreement = agree(examined, lambda x: [torch.full((2, 4), bad)])
    assert agreement.relative_error is None
    found = judge(examined, lambda x: x, agreement, 0.01)
    assert (found.quality, found.drop, found.rejected_for) == (None, None, "outputs")
    assert "NaN or infinity" in found.reason
    study = Study.open(default_storage(tmp_path), "test")
    number, _ = study.begin(None, Space(techniques()))
    record = TrialRecord(number=number, steps=(), agreement=agreement, **dict(found))
    study.end(record, None)
    assert Study.open(default_storage(tmp_path), "test").records() == [record]


def test_the_original_agrees_with_itself(examined) -> None:
    found = agree(examined, lambda *x: examined.outputs[0])
    assert (found.relative_error, found.top1) == (0.0, 1.0)
    assert found.cosine == pytest.approx(1.0)


def test_each_side_is_timed_on_its_own_threads(examined) -> None:
    before = torch.get_num_threads()
    seen: dict[str, set[int]] = {"original": set(), "variant": set()}
    hook = examined.workload.model.register_forward_pre_hook(
        lambda *_: seen["original"].add(torch.get_num_threads()) or None
    )
    try:
        torch.set_num_threads(before + 1)  # as loading a recipe with `threads` does

        def run(x):
            seen["variant"].add(torch.get_num_threads())
            return (x,)

        found = time_pair(examined, run, 0.05, num_threads=before)
    finally:
        hook.remove()
        torch.set_num_threads(before)
    assert seen == {"original": {before}, "variant": {before + 1}}
    assert found.speedup > 0
    assert found.baseline_latency_ms > found.latency_ms


def test_weights_stored_in_8_bits_are_not_multiplied_in_8_bits() -> None:
    layer = LayerCost("linear", "Linear", 1, 1.0, flops=10**9, weight_bytes=4, activation_bytes=4, num_operators=1)
    profile = Profile(total_s=1.0, layers=(layer,), dtype="float32")
    limits = Limits(read_bandwidth=1e12, gemm={"float32": 1e9, "bfloat16": 2e9, "int8": 8e9})
    assert recipe_time_s(profile, limits, [Step(technique="int8_dynamic")]) == pytest.approx(1 / 8, rel=1e-3)
    for technique in ("int8_weight", "int4_weight", "bf16"):
        assert recipe_time_s(profile, limits, [Step(technique=technique)]) == pytest.approx(1 / 2, rel=1e-3)


def test_no_product_is_held_to_a_dtype_that_is_slower_than_float32() -> None:
    layer = LayerCost("linear", "Linear", 1, 1.0, flops=10**9, weight_bytes=4, activation_bytes=4, num_operators=1)
    profile = Profile(total_s=1.0, layers=(layer,), dtype="float32")
    emulates = Limits(read_bandwidth=1e12, gemm={"float32": 1e9, "bfloat16": 1e8})
    assert recipe_time_s(profile, emulates, [Step(technique="int4_weight")]) == pytest.approx(1, rel=1e-3)
    assert TABLE["int8_weight"].predict(profile, emulates, TABLE["int8_weight"].options()) == pytest.approx(1, rel=1e-3)


def test_the_least_time_is_an_average_over_batches_as_latency_is() -> None:
    batches = [torch.randn(rows, 64) for rows in (8, 8, 8, 80)]
    profiles = profile_sizes(examine(Workload(model=torch.nn.Linear(64, 64).eval(), inputs=batches)))
    limits = Limits(read_bandwidth=1e15, gemm={"float32": 1e9})
    mean_rows = (3 * 8 + 80) / 4
    assert mean_least_time_s(profiles, limits, []) == pytest.approx(2 * mean_rows * 64 * 64 / 1e9, rel=1e-3)


def test_a_model_is_known_by_its_weights() -> None:
    def workload(dtype=torch.float32):
        model, inputs = targets.conv()
        return Workload(model=model.to(dtype), inputs=[x.to(dtype) for x in inputs])

    one, other = workload(), workload()
    assert weights_digest(one) == weights_digest(other)
    with torch.no_grad():
        other.model.head.bias[0] += 1e-3
    assert weights_digest(one) != weights_digest(other)
    assert weights_digest(workload(torch.bfloat16)) == weights_digest(workload(torch.bfloat16)) != weights_digest(one)


def test_throughput_is_of_all_batches() -> None:
    model, _ = targets.conv()
    batches = [torch.randn(size, 3, 32, 32) for size in (8, 8, 5)]
    assert Workload(model=model, inputs=batches).samples_per_batch == 7
    assert Workload(model=model, inputs=batches, num_samples=100).samples_per_batch == 100


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("branching", r"depends on the values of its tensors \(.*targets.py:\d+ \(forward\)\)"),
        ("sleeping", r"waits \(time.sleep\) in .*targets.py:\d+ \(forward\); spends \d+.*ms outside operators"),
    ],
)
def test_where_no_graph_is_the_model_every_technique_says_so(target, reason, tmp_path, monkeypatch) -> None:
    limits = Limits(3e10, {"float32": 1e12, "bfloat16": 4e12, "float16": 1e9, "int8": 8e12})
    monkeypatch.setattr(target_examination, "load_limits", lambda *args, **options: limits)
    model, x = getattr(targets, target)()
    monkeypatch.setattr(target_examination, "open_any", lambda name: Workload(model=model, inputs=[x]))
    facts = examine_any(ExaminationRequest(target=target, directory=tmp_path)).facts
    assert facts is not None
    assert re.search(reason, facts.no_graph)
    applicable = {entry.technique for entry in facts.applicable}
    reasons = {entry.technique: entry.reason for entry in facts.refused}
    emulated = {name for name, why in reasons.items() if "would emulate it" in why}  # known before any tracing
    assert emulated <= (set() if HAS_BFLOAT16 else {"bf16", "autocast"})
    assert applicable == ({"torch_compile", "autocast", "threads"} - emulated if target == "branching" else set())
    refused_all = TABLE.keys() - applicable - {"torch_compile"} - emulated
    assert all(reasons[name] == facts.no_graph for name in refused_all)


@NEEDS_BFLOAT16
def test_autocast_is_tried_only_where_no_graph_can_stand_for_the_model(monkeypatch, tmp_path) -> None:
    limits = Limits(3e10, {"float32": 1e12, "bfloat16": 4e12, "float16": 1e9, "int8": 8e12})
    monkeypatch.setattr(target_examination, "load_limits", lambda *args, **options: limits)
    model, inputs = targets.conv()
    monkeypatch.setattr(target_examination, "open_any", lambda name: Workload(model=model, inputs=inputs))
    facts = examine_any(ExaminationRequest(target="conv", directory=tmp_path)).facts
    assert facts is not None
    reasons = {entry.technique: entry.reason for entry in facts.refused}
    assert reasons["autocast"].startswith("bf16 does the same faster")


class Detector(torch.nn.Module):
    """Boxes of 0 to 320 beside scores of 0 to 1, in one tensor [1, 10, places]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([320 * x[:, :4].sigmoid(), x[:, 4:].sigmoid()], 1)


def test_a_rejected_variant_names_the_column_that_is_lost() -> None:
    inputs = torch.randn(1, 10, 400, generator=torch.Generator().manual_seed(0))
    examined = examine(Workload(model=Detector(), inputs=[inputs]))
    lost = examined.outputs[0][0].clone()
    lost[:, 4:] = 0
    agreement = agree(examined, lambda x: (lost,))
    assert agreement.cosine > 0.99999
    found = judge(examined, lambda x: x, agreement, 0.01)
    assert (found.status, found.rejected_for) == ("rejected", "quality")
    assert re.search(
        r"agreement with the original drops by .*: output 0, column \d of 10 along axis 1: error 0\.5\d? at a spread "
        r"of 0\.2\d?, [\d.]+ times as much as may be$",
        found.reason,
    )
    assert "times" not in judge(examined, lambda x: x, agreement, 0.0).reason
    flat = agree(examined, lambda x: (examined.outputs[0][0] * (1 + 1e-6),))
    assert (judge(examined, lambda x: x, flat, 0.01).status, flat.column) == ("done", "")


def test_the_first_axis_of_an_output_that_is_no_batch_has_columns() -> None:
    inputs = torch.randn(1, 10, 400, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Sequential(Detector(), torch.nn.Flatten(0, 1))
    examined = examine(Workload(model=model, inputs=[inputs]))
    lost = examined.outputs[0][0].clone()
    lost[4:] = 0
    assert "of 10 along axis 0" in agree(examined, lambda x: (lost,)).column


def test_a_disturbed_profile_gives_no_figures() -> None:
    profile = Profile(total_s=1.0, layers=(LayerCost("fc", "Linear", 1, 1.0, 10, 10, 10, 1),), dtype="float32")
    limits = Limits(read_bandwidth=1e9, gemm={"float32": 1e9})
    quiet, busy = (target_examination._diagnosed(profile, limits, cause) for cause in ("", "others used a core"))
    assert quiet.share_of_limit is not None and quiet.layers and quiet.shares
    assert (busy.share_of_limit, busy.layers, busy.shares) == (None, [], {})
    assert busy.sentence == "What holds the model back is not known: others used a core while it was measured."
