"""Parameters in bfloat16: checkpoints, copies and updates stay float32, and no update is lost."""

import copy
import io
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_training import WIDTH, TinyLM, adamw, changed_trainer, tiny_workload, trainer_with
from torch import nn

from whet.core.recipe import Step
from whet.core.workload.training import Trainer
from whet.kernels.stochastic_rounding import rounded_stochastically
from whet.measure.machine import describe
from whet.techniques.costs.memory import step_memory
from whet.techniques.mechanisms.master_weights import keep_in_bfloat16, value_of
from whet.techniques.mechanisms.module_class import first_class
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.proof.updates import prove_updates
from whet.techniques.technique import NotApplicable
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness
from whet.tuner.training.proof import exactness_of

TECHNIQUE = TRAINING_TABLE["bf16_parameters"]


def in_bfloat16(model: nn.Module, optimizer: Any, **options: Any) -> None:
    """Apply without the check, which refuses processors without bfloat16."""
    TECHNIQUE.apply(Parts(model, optimizer, []), TECHNIQUE.options(**options))


def tied_model() -> nn.Module:
    torch.manual_seed(0)
    model = TinyLM()
    model.head.weight = model.embedding.weight
    return model


def trained(model: nn.Module, optimizer: Any, number: int = 3) -> None:
    for batch in list(tiny_workload().batches)[:number]:
        optimizer.zero_grad()
        tiny_workload().loss(model, batch).backward()
        optimizer.step()


def test_matrices_are_bfloat16_and_the_optimiser_sees_float32() -> None:
    model = TinyLM()
    optimizer = adamw(model.parameters())
    in_bfloat16(model, optimizer)
    trained(model, optimizer)
    for p in model.parameters():
        assert p.grad is not None
        wanted = torch.bfloat16 if p.dim() >= 2 else torch.float32
        assert (p.dtype, p.grad.dtype) == (wanted, wanted)
        assert {x.dtype for x in optimizer.state[p].values()} == {torch.float32}
    assert model(torch.zeros(1, 2, dtype=torch.long)).dtype is torch.float32
    memory = step_memory(model, optimizer, 10**9)
    low = sum(p.numel() for p in model.parameters() if p.dim() >= 2)
    rest = sum(p.numel() for p in model.parameters() if p.dim() < 2)
    assert memory.parameter_bytes == memory.gradient_bytes == 2 * low + 4 * rest
    assert memory.optimizer_bytes >= 4 * low + 8 * (low + rest)


def test_small_updates_are_not_lost() -> None:
    """An update of 1/5000 of a weight is lost in bfloat16: after 100 of them a master has moved by 2 %."""
    for update, tolerance in (("masters", 1e-5), ("stochastic", 2e-3)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64, bias=False))
        nn.init.ones_(model[0].weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=2e-4)
        in_bfloat16(model, optimizer, update=update)
        for _ in range(100):
            model[0].weight.grad = torch.ones_like(model[0].weight)
            optimizer.step()
        found = value_of(model[0].weight).float().mean()
        assert float(found) == pytest.approx(0.98, abs=tolerance), update


def test_updates_are_those_of_the_masters_whatever_the_optimiser() -> None:
    for make in (adamw, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.Adafactor, torch.optim.RMSprop):
        workload = replace(tiny_workload(), optimizer=make)
        trainer = changed_trainer(workload, lambda parts: TECHNIQUE.apply(parts, TECHNIQUE.options()))
        proof = prove_updates(workload, trainer)
        assert proof.is_same is True, proof.words


@pytest.mark.parametrize("others", ["fused_optimizer", "optimizer_in_backward", "adafactor", "chunked_loss"])
def test_no_technique_lets_an_update_go_past_the_masters(others: str) -> None:
    if not describe().computes_bfloat16("cpu"):
        pytest.skip("this processor does not multiply bfloat16")
    workload = tiny_workload(clip_norm=None)
    trainer = trainer_with(workload, Step(technique="bf16_parameters"), Step(technique=others))
    p = workload.model.head.weight
    before = value_of(p).clone()
    if others != "adafactor":
        assert prove_updates(workload, trainer).is_same is True
    trainer.step()
    after = value_of(p)
    assert after.dtype is torch.float32
    assert not torch.equal(after, before)
    assert not torch.equal(after, after.bfloat16().float()), "the masters hold more than bfloat16"
    assert torch.equal(after.bfloat16(), p)


@pytest.mark.parametrize("update", ["masters", "stochastic"])
def test_checkpoints_are_float32_and_tied_weights_stay_tied(update: str) -> None:
    model = tied_model()
    begin = copy.deepcopy(model.state_dict())
    optimizer = adamw(model.parameters())
    in_bfloat16(model, optimizer, update=update)
    if update == "masters":
        torch.testing.assert_close(model.state_dict(), begin, rtol=0, atol=0)
    trained(model, optimizer)
    saved = model.state_dict()
    assert {value.dtype for value in saved.values()} == {torch.float32}
    file = io.BytesIO()
    pickle.dump(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), pickle.load(file)):
        assert first_class(twin) is TinyLM
        assert {p.dtype for p in twin.parameters()} == {torch.float32}
        assert twin.head.weight is twin.embedding.weight
        torch.testing.assert_close(twin.state_dict(), saved, rtol=0, atol=0)
    model.load_state_dict(begin)
    again = model.state_dict()
    rounded = {name: x.bfloat16().float() if x.dim() >= 2 else x for name, x in begin.items()}
    torch.testing.assert_close(again, begin if update == "masters" else rounded, rtol=0, atol=0)


def test_pickles_load_without_whet() -> None:
    model = TinyLM()
    in_bfloat16(model, adamw(model.parameters()))
    assert b"whet" not in pickle.dumps(model).replace(b"tiny_training", b"")


def test_what_others_write_to_a_parameter_counts() -> None:
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    in_bfloat16(model, optimizer)
    trained(model, optimizer)
    p = model.head.weight
    exact = value_of(p).clone()
    kept = p.detach().clone()
    p.data.copy_(torch.zeros_like(p))  # an average of the weights comes for an evaluation, and goes
    p.data.copy_(kept)
    torch.testing.assert_close(value_of(p), exact, rtol=0, atol=0)
    with torch.no_grad():
        p[0] = 3.0
    exact[0] = 3.0
    torch.testing.assert_close(model.state_dict()["head.weight"], exact, rtol=0, atol=0)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(value_of(p), exact, rtol=0, atol=0)


@pytest.mark.parametrize("update", ["masters", "stochastic"])
def test_the_optimisers_state_is_loaded_in_float32(update: str) -> None:
    plain = TinyLM()
    first = adamw(plain.parameters())
    trained(plain, first)
    model = TinyLM()
    optimizer = adamw(model.parameters())
    in_bfloat16(model, optimizer, update=update)
    model.load_state_dict(plain.state_dict())
    optimizer.load_state_dict(first.state_dict())
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(optimizer.state[p], first.state[q], rtol=0, atol=0)
    trained(model, optimizer)
    other = adamw(TinyLM().parameters())
    other.load_state_dict(optimizer.state_dict())  # and the other way round


def test_a_closure_computes_its_gradients_in_bfloat16() -> None:
    model = TinyLM()
    optimizer = adamw(model.parameters())
    in_bfloat16(model, optimizer)
    workload = tiny_workload()
    seen = []

    def closure() -> torch.Tensor:
        loss = workload.loss(model, next(iter(workload.batches)))
        loss.backward()
        seen.append(model.head.weight.dtype)
        return loss

    assert float(optimizer.step(closure).detach()) == pytest.approx(7.0, rel=0.1)
    assert seen == [torch.bfloat16]


def test_autograd_notices_an_update_between_forward_and_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    in_bfloat16(model, optimizer)
    loss = model(torch.ones(2, 4)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_stochastic_rounding_is_right_on_average() -> None:
    generator = torch.Generator().manual_seed(0)
    for value in (1.001, -1.001, 3e-5, 0.0, 1.0):
        found = rounded_stochastically(torch.full((200_000,), value), generator).double()
        step = max(2**-8 * abs(value), 1e-300)
        assert abs(float(found.mean()) - value) < 5 * step / 200_000**0.5 + 1e-8 * abs(value)
        assert len(found.unique()) <= 2
    odd = torch.tensor([float("inf"), float("-inf"), float("nan")])
    torch.testing.assert_close(rounded_stochastically(odd, generator).float(), odd, equal_nan=True)


def test_stochastic_rounding_owes_the_proof_of_the_loss() -> None:
    step = Step(technique="bf16_parameters", options={"update": "stochastic"})
    assert exactness_of([step]) is Exactness.OTHER
    assert exactness_of([Step(technique="bf16_parameters")]) is Exactness.ROUNDED
    workload = tiny_workload()
    trainer = changed_trainer(workload, lambda parts: TECHNIQUE.apply(parts, TECHNIQUE.options(update="stochastic")))
    plain = Trainer(tiny_workload())
    for _ in range(20):
        trainer.step()
        plain.step()
    torch.testing.assert_close(torch.stack(trainer.losses), torch.stack(plain.losses), rtol=1e-2, atol=0)


def test_masters_that_are_not_updated_would_be_found() -> None:
    """An optimiser that updates the bfloat16 parameters themselves is the planted fault."""

    def past_the_masters(parts: Parts) -> Parts:
        step, load = parts.optimizer.step, parts.optimizer.load_state_dict
        keep_in_bfloat16(parts.model, parts.optimizer, [p for p in parts.model.parameters() if p.dim() >= 2])
        parts.optimizer.step, parts.optimizer.load_state_dict = step, load  # type: ignore[method-assign]
        return parts

    workload = tiny_workload()
    trainer = changed_trainer(workload, past_the_masters)
    with torch.autocast("cpu", torch.bfloat16):
        proof = prove_updates(workload, trainer)
    assert proof.is_same is False


def test_where_it_does_not_apply() -> None:
    machine = replace(describe(), isa=(*describe().isa, "avx512_bf16"))

    def reason(model: nn.Module, optimizer: Any) -> str:
        verdict = TECHNIQUE.check(Parts(model, optimizer, []), machine, TECHNIQUE.options())
        return verdict.reason if isinstance(verdict, NotApplicable) else ""

    layer = nn.Linear(4, 4)
    assert reason(layer, adamw(layer.parameters())) == ""
    assert "LBFGS" in reason(layer, torch.optim.LBFGS(layer.parameters()))
    assert "no float32 matrix" in reason(layer, adamw([layer.bias]))
    assert "no float32 matrix" in reason(layer.double(), adamw(layer.parameters()))
    recurrent = nn.LSTM(4, 4)
    assert "no float32 matrix" in reason(recurrent, adamw(recurrent.parameters()))
    sparse = nn.Embedding(4, WIDTH, sparse=True)
    assert "sparse" in reason(sparse, torch.optim.SGD(sparse.parameters()))
    weighed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    assert "computed from others" in reason(weighed, adamw(weighed.parameters()))
    with_none = replace(machine, isa=())
    verdict = TECHNIQUE.check(Parts(layer, adamw(layer.parameters()), []), with_none, TECHNIQUE.options())
    assert isinstance(verdict, NotApplicable)
