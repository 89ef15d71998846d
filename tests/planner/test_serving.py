"""A server's plan: memory that can be counted, times that can be bounded, limits that hold, and what is refused."""

import json
from pathlib import Path

import pytest
from plain_predictor import a_cluster, a_shape

from whet.core.slo import Slo
from whet.errors import OptionError
from whet.planner.model_shape import Experts, LatentAttention
from whet.planner.serving import Replica, Traffic, serving_plans
from whet.planner.serving_answer import plan_serving

TRAFFIC = Traffic(512, 128, 20.0, Slo.parse("ttft=1s,tpot=50ms"))


def a_replica(tensor: int = 1, **given: object) -> Replica:
    shape = a_shape(**given)
    return Replica(shape, a_cluster(8), tensor, TRAFFIC, "bfloat16")


def test_bytes_of_keys_values_and_weights() -> None:
    one = a_replica()
    assert one.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2  # of Llama 3 8B: 128 KiB
    assert one.weight_bytes == pytest.approx(2 * 8.03e9, rel=0.001)
    assert a_replica(8).kv_bytes_per_token == one.kv_bytes_per_token / 8
    assert a_replica(8, num_kv_heads=4).kv_bytes_per_token == 2 * 32 * 1 * 128 * 2  # a chip has one head at least
    latent = LatentAttention(query_rank=1536, rank=512, rotary_size=64, plain_size=128, value_size=128)
    assert a_replica(8, latent=latent).kv_bytes_per_token == 2 * 32 * (512 + 64)
    assert one.most_batch == int((0.9 * 80e9 - one.weight_bytes) / (640 * one.kv_bytes_per_token))


def test_a_lone_request_decodes_no_faster_than_its_weights_are_read() -> None:
    one = a_replica()
    assert one.decode_s(1) > one.weight_bytes / one.cluster.chip.bytes_per_s
    memory, compute = one.decode_parts_s(1)
    assert memory > 10 * compute
    assert one.prefill_s > 2 * 7.5e9 * 512 / one.cluster.chip.flops["bfloat16"]
    memory, compute = one.decode_parts_s(256)
    assert memory == pytest.approx(
        (one.weight_bytes + 256 * 576 * one.kv_bytes_per_token) / one.weight_bytes * one.decode_parts_s(0)[0]
    )


def test_a_batch_reads_more_experts_than_a_token() -> None:
    one = a_replica(8, experts=Experts(number=64, per_token=2, intermediate_size=2048))
    few, more, most = (one.decode_parts_s(batch)[0] for batch in (1, 16, 1000))
    assert few < more < most
    reading = one.weight_bytes + 1000 * 576 * one.kv_bytes_per_token
    assert most == pytest.approx(reading / one.weight_bytes * a_replica(8, experts=None).decode_parts_s(0)[0]
                                 * one.weight_bytes / a_replica(8, experts=None).weight_bytes)  # fmt: skip


def test_the_batch_is_what_littles_law_gives() -> None:
    one = a_replica()
    batch, tpot, ttft = one.at(20.0)
    assert batch == pytest.approx(20.0 * 128 * tpot, rel=1e-6)
    assert tpot > one.decode_s(batch)
    assert ttft > one.prefill_s + one.decode_s(batch)
    assert one.at(1e6)[0] == float("inf")


def test_limits_hold_up_to_the_most_rate_and_not_beyond() -> None:
    one = a_replica()
    most = one.most_rate()
    assert one.bears(most * 0.999)
    assert not one.bears(most * 1.01)
    tight = Replica(one.shape, one.cluster, 1, Traffic(512, 128, 20.0, Slo.parse("tpot=9ms")), "bfloat16")
    assert 0 < tight.most_rate() < most


def test_plans_are_enough_for_the_rate_and_the_fewest_gpus_come_first() -> None:
    fast = Traffic(512, 128, 400.0, TRAFFIC.slo)
    plans, refused = serving_plans(a_shape(), a_cluster(8), fast, "bfloat16")
    assert not refused
    assert [one.chips for one in plans] == sorted(one.chips for one in plans)
    for one in plans:
        assert one.most_rate * one.replicas >= 400 * (1 - 1e-6)
        assert one.most_rate * (one.replicas - 1) < 400
        assert one.ttft_s.low <= one.ttft_s.value <= one.ttft_s.high <= float("inf")
        assert one.ttft_s.value <= 1.0 and one.tpot_s.value <= 0.05 and one.batch <= one.most_batch
        assert one.dollars_per_million_tokens == pytest.approx(one.chips * 2.0 / 3600 / (400 * 128) * 1e6)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_key_value_heads": 8}))
    return tmp_path


def test_an_answer_names_what_it_assumes(model: Path) -> None:
    found = plan_serving(model, rate=20)
    assert found.best.chips == 1
    assert any("Poisson" in line for line in found.assumptions)
    assert found.outside
    assert plan_serving(model, rate=20, precision="fp8").best.weight_bytes == found.best.weight_bytes / 2


def test_what_no_plan_holds_is_said(model: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot be served within ttft=1ms .* a lone request takes"):
        plan_serving(model, rate=20, slo="ttft=1ms")
    with pytest.raises(OptionError, match=r"take \d+ GPUs at least .*, and --gpus is 1; give more, or a lower --rate"):
        plan_serving(model, rate=2000, gpus=1)
    with pytest.raises(OptionError, match="--rate takes a number above 0; got 0"):
        plan_serving(model, rate=0)
    large = json.dumps({"model_type": "llama", "num_hidden_layers": 4000})
    (model / "config.json").write_text(large)
    with pytest.raises(OptionError, match=r"the weights, .* do not fit .*; use GPUs with more memory"):
        plan_serving(model, rate=20)
