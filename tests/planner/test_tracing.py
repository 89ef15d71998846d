"""Traces of one rank against what real processes allocate, what follows from a model's sizes, and each other."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from known_models import LLAMA_8B, MIXTRAL, gpt, llama
from many import on_ranks
from pydantic import BaseModel
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from traced_jobs import allocated_peak, counted_peaks

from whet.cli import main
from whet.errors import OptionError
from whet.planner.layout import Layout, Work
from whet.planner.memory import layer_bytes
from whet.planner.memory_trace import MemoryTrace, TracedPart
from whet.planner.model_shape import ModelShape
from whet.planner.parameters import model_count
from whet.planner.tracing import trace
from whet.planner.tracing.live_bytes import LiveBytes
from whet.planner.tracing.trace import trace_memory
from whet.planner.words import trace_words

SMALL = llama(4, 256, 704, 8, 4, vocab=2048)
WORK = Work(global_batch_size=16, sequence_length=128)


def traced(shape: ModelShape, layout: Layout, work: Work = WORK, **given: Any) -> MemoryTrace:
    found = trace_memory(shape, layout, work, 0.0, **given)
    assert not found.why_not
    return found


def parts(found: MemoryTrace) -> dict[str, float]:
    return {one.name: one.best for one in found.parts}


@pytest.mark.thorough
def test_a_trace_finds_what_the_allocator_gives() -> None:
    """PyTorch's allocator of the CPU in two real processes, each with a copy of the model."""
    layout = Layout(replicate=2, precision="float32", micro_batch_size=2)
    real = max(on_ranks(allocated_peak, 2, *_dumped(SMALL, layout, WORK)))
    assert traced(SMALL, layout, device="cpu").total == pytest.approx(real, rel=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "layouts"),
    [
        (2, [{"shard": 2, "zero_stage": 3}, {"shard": 2, "zero_stage": 2, "precision": "float32"}]),
        (2, [{"shard": 2, "zero_stage": 1, "precision": "float32"}, {"replicate": 2}]),
        (2, [{"tensor": 2, "precision": "float32"}]),
        (4, [{"shard": 4, "zero_stage": 3, "recompute": "full"}]),
        (4, [{"shard": 2, "tensor": 2, "zero_stage": 3, "precision": "float32"}]),
    ],
    ids=["zero 3 and 2", "zero 1 and copies", "tensor", "zero 3 of 4", "tensor and zero 3"],
)
def test_a_trace_finds_what_lives_in_real_processes(number: int, layouts: list[dict[str, Any]]) -> None:
    """Tensors with numbers, messages of gloo, and DTensor's own copies, in steps of whet's own trainer."""
    made = [Layout(**layout, micro_batch_size=2) for layout in layouts]
    shape, *given, work = _dumped(SMALL, *made, WORK)
    real = on_ranks(counted_peaks, number, shape, given, work, timeout_s=140.0)
    for place, layout in enumerate(made):
        most = max(one[place] for one in real)
        assert traced(SMALL, layout, device="cpu").total == pytest.approx(most, rel=0.05)


def _dumped(*records: BaseModel) -> list[dict[str, Any]]:
    return [one.model_dump() for one in records]


def test_state_is_what_the_sizes_say() -> None:
    """Rajbhandari et al., 2020: each of 8 ranks holds an eighth of the state, with all gradients in the second part."""
    number = model_count(SMALL).total
    found = parts(traced(SMALL, Layout(shard=8, zero_stage=3)))
    for name, size in (("parameters", 4), ("gradients", 4), ("optimizer", 8)):
        assert found[name] == pytest.approx(size * number / 8, rel=0.02)  # blocks of 512 bytes are rounded up


def test_the_state_of_another_optimizer_is_the_formulas() -> None:
    """Sutskever et al., 2013: SGD with momentum keeps one float32 number a parameter, half of what AdamW keeps."""
    found = traced(SMALL, Layout(shard=8, zero_stage=3, optimizer="sgd"))
    assert {one.name for one in found.parts if one.source == "formula"} == {"optimizer"}
    assert parts(found)["optimizer"] == pytest.approx(4 * model_count(SMALL).total / 8, rel=0.02)
    assert "AdamW ran in the place of sgd" in found.differs[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("degrees", [{"shard": 4, "zero_stage": 3}, {"replicate": 4}, {"replicate": 2, "shard": 2}])
def test_matrices_are_divided_beside_the_data(degrees: dict[str, Any]) -> None:
    layout = Layout(tensor=2, precision="float32", **({"zero_stage": 2} | degrees))
    found, sharers = parts(traced(SMALL, layout)), layout.shard * layout.tensor
    assert found["optimizer"] == pytest.approx(8 * model_count(SMALL).total / sharers, rel=0.02)


def test_however_many_ranks_there_are() -> None:
    few = parts(traced(SMALL, Layout(shard=8, zero_stage=3)))
    work = Work(global_batch_size=16384, sequence_length=128)
    many = traced(SMALL, Layout(replicate=1024, shard=8, zero_stage=3), work)
    assert many.ranks == 8192
    assert parts(many)["parameters"] == pytest.approx(few["parameters"], rel=0.05)
    assert parts(many)["activations"] == pytest.approx(few["activations"], rel=0.05)


@pytest.mark.thorough
def test_what_is_computed_again_is_not_kept() -> None:
    kinds: tuple[Any, ...] = ("none", "operators", "full")
    kept = [
        parts(traced(LLAMA_8B.model_copy(update={"num_layers": 8}), Layout(shard=8, zero_stage=3, recompute=kind)))
        for kind in kinds
    ]
    assert kept[0]["activations"] > kept[1]["activations"] > kept[2]["activations"]
    assert kept[0]["parameters"] == kept[2]["parameters"]


@pytest.mark.thorough
@pytest.mark.parametrize("recompute", ["none", "operators", "full"])
def test_a_layer_keeps_what_the_formula_says_where_matrices_are_divided(recompute: Any) -> None:
    """Kept are also what messages made, which the trace counts among buffers: gathered inputs, and sums."""
    layout = Layout(tensor=2, shard=4, zero_stage=3, recompute=recompute)
    work = Work(global_batch_size=4, sequence_length=8192)
    few, more = (parts(traced(LLAMA_8B.model_copy(update={"num_layers": number}), layout, work)) for number in (6, 8))
    kept = sum(more[name] - few[name] for name in ("activations", "buffers")) / 2
    assert kept == pytest.approx(layer_bytes(LLAMA_8B, layout, work), rel=0.01)


@pytest.mark.thorough
@pytest.mark.parametrize(("zero_stage", "device"), [(3, "cuda"), (1, "cuda"), (1, "cpu")])
def test_few_layers_stand_for_many(monkeypatch: pytest.MonkeyPatch, zero_stage: Any, device: Any) -> None:
    """The same model with each of its layers traced holds the same bytes, by part."""
    layout = Layout(shard=2, zero_stage=zero_stage, precision="float32")
    many = SMALL.model_copy(update={"num_layers": 9})
    found = traced(many, layout, device=device)
    assert found.num_layers == 6
    monkeypatch.setattr(trace, "fewer_layers", lambda shape: None)
    assert parts(traced(many, layout, device=device)) == parts(found)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [MIXTRAL, gpt(2, 512, 8)], ids=["experts", "gpt"])
def test_models_that_whet_has_not_are_traced_as_plain_decoders(shape: ModelShape) -> None:
    small = shape.model_copy(update={"num_layers": 2})
    found = traced(small, Layout(shard=8, zero_stage=3))
    assert "plain decoder" in found.differs[0]
    assert parts(found)["parameters"] == pytest.approx(4 * model_count(small).total / 8, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "layout", "said"),
    [
        (MIXTRAL, {"tensor": 2}, "decoders like Llama's alone"),
        (SMALL, {"offload": True}, "the host's"),
        (SMALL, {"pipeline": 2}, "schedules of pipelines"),
        (SMALL, {"tensor": 8}, "does not divide"),
    ],
)
def test_what_cannot_be_traced_is_left_to_the_formulas(shape: ModelShape, layout: dict[str, Any], said: str) -> None:
    found = trace_memory(shape, Layout(**layout), WORK, 0.05)
    assert said in found.why_not
    assert {one.source for one in found.parts} == {"formula"}
    assert found.difference is None


def test_a_process_that_trains_with_others_traces_nothing() -> None:
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pytest.raises(OptionError, match="trains with no others"):
            traced(SMALL, Layout(shard=8, zero_stage=3))
    finally:
        distributed.destroy_process_group()


def test_what_does_not_fit_as_traced_is_said() -> None:
    found = MemoryTrace(
        layout=Layout(), parts=(TracedPart(name="parameters", formula=1e9, traced=3e9),), phase="forward"
    )
    assert "needs 1.00 GB too much" in trace_words(found, 2e9)
    assert "fit" not in trace_words(found, 4e9)


def test_the_command_says_what_is_traced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 2048, **sizes}))
    words = ["plan", str(tmp_path), "--gpus", "1", "--global-batch-size", "1", "--sequence-length", "128", "--trace"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--report", str(tmp_path / "report")])
    assert left.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "memory of the best plan by a trace of one GPU" in out and "traced" in out and "It holds most in" in out
    page = (tmp_path / "report" / "report.html").read_text()
    held = json.loads((tmp_path / "report" / "plan.json").read_text())["trace"]
    assert "Memory by a trace of one GPU" in page
    assert {one["name"]: one["source"] for one in held["parts"]}["parameters"] == "traced"
    assert held["total"] == pytest.approx(sum(one["best"] for one in held["parts"]))


def test_blocks_are_counted_once_and_until_they_are_freed() -> None:
    with LiveBytes(rounded_to=512) as live:
        live.phase = "forward"
        first = torch.ones(1000)
        view = first[:10]
        assert live.now == 4096
        second = first * 2
        assert (live.now, live.peaks[()][0]) == (8192, 8192)
        del first
        assert live.now == 8192  # the view holds it
        del view
        live.segment = ("next",)
        third = second + 1
        assert {segment: peak for segment, (peak, _) in live.peaks.items()} == {(): 8192, ("next",): 8192}
        del third
        second.untyped_storage().resize_(0)
        assert live.now == 0
        second.untyped_storage().resize_(4000)
        assert live.by_kind([]) == Counter({"forward": 4096})
        assert live.by_kind([("kept", [second])]) == Counter({"kept": 4096})
