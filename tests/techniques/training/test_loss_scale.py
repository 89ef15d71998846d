"""float16 with a loss scale that the loop never sees, against torch's own scaler and against float64."""

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_training import TinyLM, adamw, loss_of, tiny_workload
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import whet
from whet.core.recipe import Recipe, Step
from whet.errors import RecipeError
from whet.measure.machine import Machine, describe
from whet.techniques.mechanisms.loss_scale import LossScale, loss_scale_of
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.proof import gradients
from whet.techniques.technique import NotApplicable
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness


@pytest.fixture(autouse=True)
def float16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that multiplies float16, as the slow kernels of every other one do."""
    monkeypatch.setattr(Machine, "computes_float16", lambda *_: True)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # put back where no step was made


def recipe_of(*others: str, **options: Any) -> Recipe:
    steps = [Step(technique=name) for name in others]
    return Recipe(kind="training", steps=(*steps, Step(technique="autocast_fp16", options=options)))


def parts() -> tuple[nn.Module, torch.optim.Optimizer, list[Tensor]]:
    workload = tiny_workload()
    return workload.model, workload.optimizer(workload.model.parameters()), list(workload.batches)


def scale_of(model: nn.Module) -> LossScale:
    scale = loss_scale_of(model)
    assert scale is not None
    return scale


@pytest.mark.parametrize("others", [(), ("chunked_loss", "checkpointing", "fused_optimizer"), ("adafactor",)])
def test_it_trains_as_with_torchs_own_scaler(others: tuple[str, ...]) -> None:
    """Losses, scales, skipped steps and learning rates of a loop that overflows, clips and follows a schedule."""
    knobs: dict[str, Any] = {
        "init_scale": 2.0**24,
        "growth_factor": 4.0,
        "backoff_factor": 2.0**-4,
        "growth_interval": 2,
    }
    mine, optimizer, batches = parts()
    plain = copy.deepcopy(mine)
    mine, optimizer, _ = whet.prepare(mine, optimizer, batches, recipe=recipe_of(*others, **knobs))
    theirs: torch.optim.Optimizer = adamw(plain.parameters())
    if "adafactor" in others:
        only = Recipe(kind="training", steps=(Step(technique="adafactor"),))
        _, theirs, _ = whet.prepare(plain, theirs, batches, recipe=only)
    scaler = torch.amp.GradScaler("cpu", **knobs)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)) for o in (optimizer, theirs)]
    seen: list[tuple[float, float]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own loop warns where the first step is skipped
        for batch in batches * 3:
            optimizer.zero_grad()
            loss = loss_of(mine, batch)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(mine.parameters(), 0.5)
            optimizer.step()
            schedules[0].step()

            theirs.zero_grad()
            with torch.autocast("cpu", torch.float16):
                logits = plain(batch[:, :-1])
            expected = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
            scaler.scale(expected).backward()
            scaler.unscale_(theirs)
            own_norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            scaler.step(theirs)
            scaler.update()
            schedules[1].step()

            torch.testing.assert_close(loss, expected, rtol=2e-3, atol=0)
            if own_norm.isfinite():
                torch.testing.assert_close(norm, own_norm, rtol=1e-2, atol=0)
            seen.append((float(scale_of(mine).scale), scaler.get_scale()))
    assert [a for a, _ in seen] == [b for _, b in seen]
    assert scale_of(mine).num_skipped > 0
    assert optimizer.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
    assert all(bool(p.isfinite().all()) for p in mine.parameters())


def test_gradients_are_those_of_float64_whatever_the_scale() -> None:
    """Tiny gradients survive, which float16 alone would lose; gradients from outside of the model stay as they are."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return 1e-6 * loss_of(model, batch) + 1e-7 * sum((p**2).sum() for p in model.parameters())

    model, optimizer, batches = parts()
    own = gradients.gradients_of(model, loss, batches[:2], seed=0)
    reference = gradients.reference_gradients(model, loss, batches[:2], seed=0)
    for init_scale in (1.0, 2.0**20, 2.0**24):
        model, optimizer, _ = parts()
        whet.prepare(model, optimizer, [], recipe=recipe_of(init_scale=init_scale))
        found = gradients.gradients_of(model, loss, batches[:2], seed=0)
        proof = gradients.judged(found, own, reference, Exactness.ROUNDED)
        assert proof.is_same is (init_scale > 1), proof.words
        assert (proof.cosine > 0.999) is (init_scale > 1)
    assert scale_of(model).num_skipped == 0


def test_gradients_that_pass_through_two_calls_are_scaled_once() -> None:
    torch.manual_seed(0)
    model, before = nn.Linear(6, 6), nn.Linear(6, 6)
    x = torch.randn(4, 6)

    def loss() -> Tensor:
        return F.mse_loss(model(model(before(x))), x)

    expected = torch.autograd.grad(loss(), [*model.parameters(), *before.parameters()])
    whet.prepare(model, torch.optim.SGD(model.parameters()), [], recipe=recipe_of(init_scale=256.0))
    loss().backward()
    for p, gradient in zip([*model.parameters(), *before.parameters()], expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-2, atol=1e-4)


def test_a_closure_and_parts_of_a_batch() -> None:
    model, optimizer, batches = parts()
    losses = []
    recipe = Recipe(kind="training", steps=(*recipe_of("accumulation").steps,))
    whet.prepare(model, optimizer, batches, recipe=recipe)
    whole = parts()[0]
    expected = torch.autograd.grad(loss_of(whole, batches[0]), list(whole.parameters()))

    def closure() -> Tensor:
        optimizer.zero_grad()
        for part in whet.micro_batches(model, batches[0]):
            losses.append(loss_of(model, part))
            losses[-1].backward()
        return losses[-1]

    assert optimizer.step(closure) is losses[-1]
    assert len(losses) == 2
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=2e-2, atol=1e-4)


def test_the_optimisers_checkpoint_holds_the_scale() -> None:
    model, optimizer, batches = parts()
    whet.prepare(model, optimizer, batches, recipe=recipe_of(init_scale=2.0**20))
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    again, optimizer_again, _ = parts()
    whet.prepare(again, optimizer_again, batches, recipe=recipe_of(init_scale=2.0**20))
    assert scale_of(again).scale != scale_of(model).scale
    optimizer_again.load_state_dict(optimizer.state_dict())
    assert scale_of(again).scale == scale_of(model).scale
    adamw(parts()[0].parameters()).load_state_dict(optimizer.state_dict())  # without whet


class Kept(nn.Module):
    """Keep a tensor of forward, and use a weight by another way than its name."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(6, 6), kind
        self.weights = [self.linear.weight]
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        if self.kind == "reentrant":
            return checkpoint(self.linear, x.requires_grad_(), use_reentrant=True)
        if self.kind == "list":
            return F.linear(x, self.weights[0])
        y = self.linear(x)
        if self.kind == "state" and self.kept is not None:
            y = y + self.kept
        self.kept = y
        return {"y": y, "cache": Kept} if self.kind == "cache" else y


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("reentrant", "a reentrant checkpoint computes"),
        ("list", "nor a parameter under its name"),
        ("inside", "a tensor from inside of the model"),
        ("cache", "in which whet cannot see the tensors"),
        ("grad", "by another call than loss.backward"),
    ],
)
def test_what_would_train_wrongly_is_refused(kind: str, message: str) -> None:
    model = Kept(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.linear.weight.detach().clone()
    whet.prepare(model, optimizer, [], recipe=recipe_of())
    x = torch.randn(4, 6)
    with pytest.raises(RecipeError, match=message):
        loss = model(x).sum()
        if kind == "inside":
            assert model.kept is not None
            loss = loss + model.kept.float().sum()
        if kind == "grad":
            for p, gradient in zip(
                model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
            ):
                p.grad = gradient
        else:
            loss.backward()
        optimizer.step()
    torch.testing.assert_close(model.linear.weight.detach(), before, rtol=0, atol=0)


def test_backward_is_torchs_own_after_the_first_step() -> None:
    original = torch.autograd.backward
    model, optimizer, batches = parts()
    whet.prepare(model, optimizer, batches, recipe=recipe_of())
    assert torch.autograd.backward is not original
    loss_of(model, batches[0]).backward()
    optimizer.step()
    assert torch.autograd.backward is original


def test_copies_and_evaluation() -> None:
    model, optimizer, batches = parts()
    whet.prepare(model, optimizer, batches, recipe=recipe_of())
    loss_of(model, batches[0]).backward()
    optimizer.step()
    with torch.no_grad():
        assert model(batches[0]).dtype is torch.float32
    twin = copy.deepcopy(model)
    assert type(twin.eval()(batches[0])) is Tensor
    with pytest.raises(RecipeError, match="prepare the copy as well"):
        twin.train()(batches[0])
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_where_it_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    technique = TRAINING_TABLE["autocast_fp16"]

    def reason(model: nn.Module, optimizer: Any = None, **options: Any) -> str:
        optimizer = optimizer or torch.optim.SGD(model.parameters())
        verdict = technique.check(Parts(model, optimizer, []), describe(), technique.options(**options))
        return verdict.reason if isinstance(verdict, NotApplicable) else ""

    model = TinyLM()
    assert reason(model) == ""
    assert "recurrent layers" in reason(nn.LSTM(4, 4))
    assert "not all float32" in reason(TinyLM().double())
    assert "another optimiser updates" in reason(model, torch.optim.SGD(model.head.parameters()))
    assert "LBFGS" in reason(model, torch.optim.LBFGS(model.parameters()))
    assert "between 0 and 1" in reason(model, backoff_factor=1.5)
    with pytest.raises(RecipeError, match="exclude each other"):
        whet.prepare(*parts(), recipe=recipe_of("optimizer_in_backward"))
    monkeypatch.undo()  # the last lines, since the fixture's own changes go too
    if not {"avx512_fp16", "amx_fp16"} & set(describe().isa):
        assert "would emulate it" in reason(model)
