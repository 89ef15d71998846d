"""bf16, fp16 and autocast: close to the original, float32 at the borders, and refused where they can't pay."""

import dataclasses

import pytest
import torch
from small_models import EXAMINED
from torch import Tensor, nn

from whet.errors import TargetError
from whet.measure.machine import Gpu
from whet.techniques.precision import autocast, bf16, fp16
from whet.techniques.rewriting import low_precision as half
from whet.techniques.rewriting.graph import relative_error
from whet.techniques.structure import fuse_qkv, sdpa_attention
from whet.techniques.technique import Applies, Candidate, NoOptions, NotApplicable


@pytest.mark.parametrize("technique", [bf16.TECHNIQUE, autocast.TECHNIQUE], ids=lambda t: t.name)
@pytest.mark.parametrize("name", EXAMINED)
def test_close_and_float32_at_the_borders(technique, name) -> None:
    examined = EXAMINED[name]()
    tuned = technique.apply(Candidate.original(examined), technique.options())
    with torch.no_grad():
        outputs = tuned.call(*examined.flat_inputs[0])
    assert {y.dtype for y in outputs} == {torch.float32}
    error = relative_error(outputs, examined.outputs[0])
    assert 1e-4 < error < 3e-2  # bfloat16 has 8 bits: less error would mean that nothing was converted


def test_what_stays_float32() -> None:
    conv = bf16.apply(Candidate.original(EXAMINED["conv_net"]()), NoOptions()).module
    dtypes = {name.removeprefix("module.model."): x.dtype for name, x in conv.state_dict().items()}
    assert dtypes["conv1.weight"] == dtypes["head.bias"] == torch.bfloat16
    assert {dtypes[f"bn1.{x}"] for x in ("weight", "bias", "running_mean", "running_var")} == {torch.float32}
    assert dtypes["bn1.num_batches_tracked"] == torch.int64
    rotary = bf16.apply(Candidate.original(EXAMINED["hugging_face_like"]()), NoOptions()).module
    assert dict(rotary.named_buffers())["module.model.inv_freq"].dtype == torch.float32


@pytest.mark.parametrize("name", ["encoder", "hugging_face_like"])
def test_after_graph_rewrites(name) -> None:
    """A traced graph pins float32 (a mask's minimum, an upcast softmax): it is repaired, not refused."""
    examined = EXAMINED[name]()
    fused = fuse_qkv.apply(Candidate.original(examined), NoOptions())
    tuned = bf16.apply(fused, NoOptions())
    with torch.no_grad():
        outputs = tuned.call(*examined.flat_inputs[0])
    assert 1e-4 < relative_error(outputs, examined.outputs[0]) < 3e-2
    weights = [m.weight.dtype for m in tuned.module.modules() if isinstance(m, nn.Linear)]
    assert set(weights) == {torch.bfloat16}


class Pinned(nn.Module):
    """Upcasts for itself, and forgets to come back."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        y = self.a(x).to(torch.float32)
        scores = (y @ y.mT).masked_fill(~keep, -3.4e38)
        mask = torch.zeros(4, 4).masked_fill(~keep, torch.finfo(torch.float32).min)
        y = nn.functional.scaled_dot_product_attention(self.b(y), x, x, attn_mask=mask)
        return scores.softmax(-1) @ y


def test_repairs_a_model_that_pins_float32(examined_of) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 4, 8), torch.ones(4, 4, dtype=torch.bool).tril()
    examined = examined_of(Pinned(), x)
    tuned = bf16.apply(Candidate.original(examined), NoOptions())
    assert len(tuned.notes) == 1
    assert "pins float32" in tuned.notes[0]
    assert relative_error(tuned.call(*x), examined.outputs[0]) < 3e-2


@pytest.mark.parametrize("technique", [bf16.TECHNIQUE, autocast.TECHNIQUE], ids=lambda t: t.name)
def test_refused_without_native_bfloat16(technique, examined_of, machine) -> None:
    examined = examined_of(nn.Linear(2, 2), torch.randn(1, 2))
    assert isinstance(technique.check(examined, machine, technique.options()), Applies)
    without = dataclasses.replace(machine, chip="old chip", isa=("avx2", "avx512", "avx512_vnni"))
    verdict = technique.check(examined, without, technique.options())
    assert isinstance(verdict, NotApplicable)
    assert verdict.reason.startswith("old chip has no native bfloat16")


def test_refused_for_a_bfloat16_model(examined_of, machine) -> None:
    examined = examined_of(nn.Linear(2, 2).bfloat16(), torch.randn(1, 2).bfloat16())
    assert bf16.check(examined, machine, NoOptions()) == NotApplicable("the model's weights are bfloat16 already")


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [(Gpu(0, "T4", (7, 5)), "T4 (sm_75) has no native bfloat16"), (Gpu(0, "A100", (8, 0)), "")],
)
def test_refused_on_older_gpus(gpu, reason, examined_of, machine, monkeypatch) -> None:
    examined = examined_of(nn.Linear(2, 2), torch.randn(1, 2))
    monkeypatch.setattr(type(examined), "device_type", "cuda")
    refusal = half.bfloat16_refusal(examined, dataclasses.replace(machine, gpu=gpu.label, gpus=(gpu,)))
    assert refusal.startswith(reason)
    assert bool(refusal) == bool(reason)


@pytest.mark.parametrize(("ratio", "applies"), [(0.5, False), (1.4, False), (1.6, True)])
def test_fp16_needs_a_fast_product(ratio, applies, examined_of, machine, monkeypatch) -> None:
    monkeypatch.setattr(fp16, "float16_speedup", lambda device: ratio)
    verdict = fp16.check(examined_of(nn.Linear(2, 2), torch.randn(1, 2)), machine, NoOptions())
    assert isinstance(verdict, Applies if applies else NotApplicable)
    assert f"{ratio:.2g} times" in (verdict.detail if isinstance(verdict, Applies) else verdict.reason)


def test_fp16_that_is_emulated_is_told_in_the_same_words_each_time(examined_of, machine, monkeypatch) -> None:
    examined = examined_of(nn.Linear(2, 2), torch.randn(1, 2))
    reasons = set()
    for ratio in (0.17, 0.0094, 0.021):  # as three processes of one machine measured it
        monkeypatch.setattr(fp16, "float16_speedup", lambda device, ratio=ratio: ratio)
        verdict = fp16.check(examined, machine, NoOptions())
        assert isinstance(verdict, NotApplicable)
        reasons.add(verdict.reason)
    assert len(reasons) == 1
    assert "runs at less than half of float32's speed here; it pays from 1.5 times on" in reasons.pop()


def test_fp16_probe_is_measured_once() -> None:
    assert fp16.float16_speedup("cpu") == fp16.float16_speedup("cpu") >= 0


def test_fp16_close_and_overflow_refused(examined_of) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    examined = examined_of(model, x)
    outputs = fp16.apply(Candidate.original(examined), NoOptions()).call(x)
    assert 1e-6 < relative_error(outputs, examined.outputs[0]) < 3e-3
    nn.init.constant_(model.bias, 1e5)
    with pytest.raises(TargetError, match="overflow"):
        fp16.apply(Candidate.original(examined_of(model, x)), NoOptions())


def test_sdpa_then_bf16_on_hugging_face_bert(examined_of) -> None:
    """The whole chain on a transformers model with a padding mask: attention, projections, precision."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    batch = {"input_ids": torch.randint(0, 50, (2, 9)), "attention_mask": mask}
    examined = examined_of(transformers.BertModel(config), batch)
    candidate = Candidate.original(examined)
    for technique in (sdpa_attention, fuse_qkv, bf16):
        candidate = technique.apply(candidate, technique.TECHNIQUE.options())
    with torch.no_grad():
        outputs = candidate.call(*examined.flat_inputs[0])
    assert relative_error(outputs, examined.outputs[0]) < 5e-2
