"""The technique document_attention: in models, beside other techniques, and what it says of masks."""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo.utils
import torch.nn.functional as F
from packed_rows import inputs, results
from tiny_training import PackedLM, packed_loss_of, packed_workload, tiny_workload, trainer_with
from torch import Tensor, nn

import whet
from whet.core.recipe import Recipe, Step
from whet.core.workload.training import Trainer
from whet.measure.machine import describe
from whet.techniques.applied import applied
from whet.techniques.costs.step_profile import StepProfile, profile_steps
from whet.techniques.mechanisms.later_notes import all_notes
from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.packing import document_masking, packed_operator
from whet.techniques.mechanisms.packing.document_masking import AttentionWithinDocuments
from whet.techniques.mechanisms.packing.packed_attention import Documents
from whet.techniques.mechanisms.packing.packed_masks import SEEN
from whet.techniques.mechanisms.packing.packing import PackedBatches, TokenBatch, token_batch
from whet.techniques.mechanisms.packing.unfused_attention import AttentionByProducts, AttentionComputedAgain
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE
from whet.tuner.training.examination import applicable_techniques

TECHNIQUE = TRAINING_TABLE["document_attention"]
STEP = Step(technique="document_attention")


@pytest.fixture(autouse=True)
def _own_counts() -> Iterator[None]:
    SEEN.forget()
    yield
    SEEN.forget()


def packed_parts(*steps: str) -> Parts:
    workload = packed_workload()
    parts = Parts(workload.model, workload.optimizer(workload.model.parameters()), workload.batches)
    return applied(parts, [Step(technique=name) for name in steps], TRAINING_TABLE)


def gradients(model: nn.Module, batches: Sequence[Any]) -> dict[str, Tensor]:
    model.train().zero_grad()
    for batch in batches:
        packed_loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def test_checkpoints_compute_the_same_again() -> None:
    wanted = gradients(packed_workload().model, list(packed_workload().batches))
    for keep in ("inputs", "products"):
        SEEN.forget()
        parts = packed_parts("document_attention")
        step = Step(technique="checkpointing", options={"keep": keep})
        model = applied(parts, [step], TRAINING_TABLE).model
        for name, found in gradients(model, list(parts.batches)).items():
            torch.testing.assert_close(found, wanted[name], rtol=1e-4, atol=1e-7)
        assert SEEN.num_other == 0
        assert SEEN.num_packed == (16 if keep == "inputs" else 8), "two layers, four batches, and again in backward"


@pytest.mark.thorough
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_it_is_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is not broken, and both layers share what was found in the mask."""
    looked: list[int] = []
    original = packed_operator.find_documents

    def counted(mask: Tensor) -> Any:
        looked.append(1)
        return original(mask)

    monkeypatch.setattr(packed_operator, "find_documents", counted)
    batches = list(packed_workload().batches)
    wanted = gradients(packed_workload().model, batches)
    model = packed_parts("document_attention", "compile").model
    found = gradients(model, batches)
    assert (SEEN.num_packed, SEEN.num_other) == (2 * len(batches), 0)
    assert len(looked) == len(batches)
    assert not torch._dynamo.utils.counters["graph_break"]
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_takes_other_masks_and_masks_in_the_same_memory() -> None:
    """A graph may make a second mask in the memory of the first one, which nobody counts."""

    class Two(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, numbers: Tensor) -> Tensor:
            same = numbers[:, None, :, None] == numbers[:, None, None, :]
            causal = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
            near = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(-2)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=same & causal)
            return F.scaled_dot_product_attention(out.sin(), k, v, attn_mask=same & causal & near)

    numbers = torch.tensor([[0] * 10 + [1] * 6, [0] * 3 + [1] * 13])
    qkv = inputs(2, 2, 2, 16)
    wanted = results(lambda *qkv: Two()(*qkv, numbers), qkv)
    module = Two()
    extend(module, AttentionWithinDocuments)
    compiled = torch.compile(module, fullgraph=True)
    for mine, theirs in zip(results(lambda *qkv: compiled(*qkv, numbers), qkv), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert (SEEN.num_packed, SEEN.num_other) == (1, 1)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("keep", [True, False])
def test_compiled_inside_autocast_with_products(keep: bool) -> None:
    """How many probabilities are kept is known only when the graph runs."""
    numbers = [token_batch([[[1] * n for n in row]], 64).documents for row in ((30, 20), (64,), (10, 9, 8, 30))]
    masks = [Documents(one).mask for one in numbers]
    masks.append(masks[0].clone())
    masks[-1][0, 0, 40, 0] = True

    class Own(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    module = Own()
    extend(module, AttentionWithinDocuments)
    extend(module, AttentionByProducts if keep else AttentionComputedAgain)
    compiled = torch.compile(module, fullgraph=True)
    qkv = [x.detach().float().requires_grad_() for x in inputs(1, 2, 2, 64)]
    for mask in masks:
        with torch.autocast("cpu", torch.bfloat16):
            found = results(lambda *qkv, mask=mask: compiled(*qkv, mask), qkv)
            theirs = results(lambda *qkv, mask=mask: module(*qkv, mask), qkv)
        for mine, other in zip(found, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2)
    assert SEEN.num_packed == 2 * 3


# torch.compile itself looks at the gradient of a compiled block's input.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.usefixtures("fresh_compiler")
def test_a_break_of_the_graph_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a compiled model looks at masks between two graphs. Here it is made to do so on the CPU."""

    def packed(way: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor | None:
        return document_masking._apart(way, q, k, v, mask, scale)

    monkeypatch.setattr(document_masking, "_packed", packed)
    batches = list(packed_workload().batches)
    wanted = gradients(packed_workload().model, batches)
    found = gradients(packed_parts("document_attention", "compile").model, batches)
    assert SEEN.num_packed == 2 * len(batches)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-6)


def llama() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=37,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(config).double()
    return model.train()


def llama_gradients(model: Any, batches: Sequence[TokenBatch]) -> tuple[float, dict[str, Tensor]]:
    """Return the loss and its gradients by name: the mean over all tokens that have a loss."""
    model.zero_grad()
    total = sum(batch.num_valid for batch in batches)
    sum_of_losses = 0.0
    for batch in batches:
        if not batch.num_valid:
            continue
        loss = model(**batch.for_transformers(model)).loss * batch.num_valid / total
        loss.backward()
        sum_of_losses += float(loss.detach())
    return sum_of_losses, {name: p.grad.clone() for name, p in model.named_parameters()}


def documents_of_llama() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 37, (length,), generator=generator) for length in (7, 3, 12, 5, 2, 14, 6, 9)]


@pytest.mark.parametrize("steps", [(), ("checkpointing",)])
def test_a_model_of_transformers_with_packed_batches(steps: tuple[str, ...]) -> None:
    """Loss and gradients are those of the dense mask in float64, and those of the documents alone."""
    documents = documents_of_llama()
    batches = list(PackedBatches(documents, 16, 2))
    loss, wanted = llama_gradients(llama(), batches)
    alone_loss, alone = llama_gradients(llama(), [token_batch([[one]], len(one)) for one in documents])
    model = llama()
    parts = Parts(model, torch.optim.SGD(model.parameters()), batches)
    all_steps = [STEP, *(Step(technique=name) for name in steps)]
    assert isinstance(TECHNIQUE.check(parts, describe(), TECHNIQUE.options()), Applies)
    applied(parts, all_steps, TRAINING_TABLE)
    SEEN.forget()
    found_loss, found = llama_gradients(model, batches)
    assert SEEN.num_packed == 2 * len(batches) * (2 if steps else 1)
    assert SEEN.num_other == 0
    assert found_loss == pytest.approx(loss, rel=1e-9)
    assert found_loss == pytest.approx(alone_loss, rel=1e-6)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-9, msg=name)
        # transformers computes rotary positions and the loss in float32.
        torch.testing.assert_close(gradient, alone[name], rtol=1e-5, atol=1e-8, msg=name)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_of_transformers() -> None:
    batches = list(PackedBatches(documents_of_llama(), 16, 2))[:2]
    loss, wanted = llama_gradients(llama(), batches)
    model = llama()
    parts = Parts(model, torch.optim.SGD(model.parameters()), batches)
    applied(parts, [STEP, Step(technique="compile")], TRAINING_TABLE)
    SEEN.forget()
    found_loss, found = llama_gradients(model, batches)
    assert SEEN.num_packed == 2 * len(batches)
    assert not torch._dynamo.utils.counters["graph_break"]
    assert found_loss == pytest.approx(loss, rel=1e-6)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-5, atol=1e-7, msg=name)


def test_a_model_with_another_attention_is_refused() -> None:
    model: Any = llama()
    model.config._attn_implementation = "eager"
    parts = Parts(model, torch.optim.SGD(model.parameters()), [])
    verdict = TECHNIQUE.check(parts, describe(), TECHNIQUE.options())
    assert isinstance(verdict, NotApplicable)
    assert "load it with attn_implementation='sdpa'" in verdict.reason


@pytest.mark.parametrize(("size", "reason"), [(64, "FlexAttention's, on a GPU"), (100, "a power of 2"), (8, "16 or")])
def test_sizes_of_blocks(size: int, reason: str) -> None:
    verdict = TECHNIQUE.check(packed_parts(), describe(), TECHNIQUE.options(block_size=size))
    assert isinstance(verdict, NotApplicable)
    assert reason in verdict.reason
    kind = document_masking.with_block_size(size)
    assert kind.block_size == size
    assert issubclass(kind, AttentionWithinDocuments)


def test_a_profile_says_whether_masks_keep_documents_apart() -> None:
    trainer = Trainer(packed_workload())
    trainer.step()
    profile = profile_steps(trainer)
    assert 0.1 < profile.within_documents < 0.5
    assert TECHNIQUE.check_masks is not None
    assert not TECHNIQUE.check_masks(profile.within_documents)
    profile = StepProfile(total_s=10.0, attention_s=6.0, other_s=4.0, within_documents=0.25)
    assert TECHNIQUE.predict(profile, None, TECHNIQUE.options()) == pytest.approx(10 / (4 + 1.5))  # type: ignore[arg-type]
    trainer = Trainer(tiny_workload())
    trainer.step()
    profile = profile_steps(trainer)
    assert profile.within_documents == 1.0
    assert "no attention of a step has a mask" in TECHNIQUE.check_masks(profile.within_documents)


def test_a_search_leaves_it_out_where_no_mask_keeps_documents_apart() -> None:
    parts = packed_parts()
    for share, is_refused in ((1.0, True), (0.3, False)):
        profile = StepProfile(total_s=1.0, attention_s=0.5, other_s=0.5, within_documents=share)
        found, refused = _examined(parts, profile)
        assert (TECHNIQUE.name in found) != is_refused
        assert (TECHNIQUE.name in refused) == is_refused


def _examined(parts: Parts, profile: StepProfile) -> tuple[list[str], list[str]]:
    from whet.measure.machine.limits import Limits
    from whet.techniques.costs.memory import StepMemory

    machine = describe()
    limits = Limits(read_bandwidth=1e10, gemm={"float32": 1e11, "bfloat16": 2e11})
    memory = StepMemory(peak_bytes=10, parameter_bytes=1, gradient_bytes=1, optimizer_bytes=1, other_bytes=7)
    others = tuple(name for name in TRAINING_TABLE if name != TECHNIQUE.name)
    applicable, refused = applicable_techniques(parts, machine, limits, profile, memory, others)
    return [one.technique for one in applicable], [one.technique for one in refused]


def test_notes_say_when_nothing_was_changed(caplog: pytest.LogCaptureFixture) -> None:
    recipe = Recipe(kind="training", steps=(STEP,))
    for workload, is_packed in ((packed_workload(clip_norm=None), True), (tiny_workload(clip_norm=None), False)):
        caplog.clear()
        optimizer = workload.optimizer(workload.model.parameters())
        model, optimizer, loader = whet.prepare(workload.model, optimizer, workload.batches, recipe=recipe)
        with caplog.at_level(logging.WARNING, logger="whet"):
            for _ in range(3):
                for batch in loader:
                    optimizer.zero_grad()
                    workload.loss(model, batch).backward()
                    optimizer.step()
        notes = [record.getMessage() for record in caplog.records if "document_attention" in record.getMessage()]
        assert len(notes) == (0 if is_packed else 1), "it is said once"
        assert all("so far it changes nothing" in note for note in notes)


def test_notes_of_masks_that_stayed_with_pytorch() -> None:
    parts = packed_parts("document_attention")
    assert "so far it changes nothing" in all_notes(parts)[0]
    gradients(parts.model, list(parts.batches)[:1])
    assert all_notes(parts) == ()
    mask = torch.ones(24, 24, dtype=torch.bool).tril()
    mask[20, 3] = False
    parts.model.blocks[0](torch.randn(1, 24, 24), mask)  # type: ignore[operator,index,union-attr]
    assert "1 of 3 attentions with a mask stayed PyTorch's own" in all_notes(parts)[0]


def test_the_model_of_the_contract_is_packed() -> None:
    """Twenty steps of the contract compute every attention document by document."""
    trainer = trainer_with(packed_workload(), STEP)
    assert isinstance(trainer.model, PackedLM)
    for _ in range(4):
        trainer.step()
    assert (SEEN.num_packed, SEEN.num_other) == (8, 0)
    assert math.isfinite(float(trainer.losses[-1]))
