"""Batches in parts: the gradients of the whole batch, and what is refused."""

import contextlib
import copy
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from tiny_training import VOCAB, TinyLM, adamw, tiny_workload, trainer_with
from torch import Tensor, nn
from torch.utils.data import DataLoader

import whet
from whet.core.recipe import Recipe, Step
from whet.core.workload.batch_parts import parts_of
from whet.core.workload.training import Trainer
from whet.errors import RecipeError
from whet.measure.machine import describe
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE


def recipe_of(number: int, *others: str) -> Recipe:
    steps = [Step(technique=name) for name in others]
    return Recipe(kind="training", steps=(*steps, Step(technique="accumulation", options={"num_parts": number})))


class Masked(NamedTuple):
    """Token ids and labels, of which some count nothing."""

    ids: Tensor
    labels: Tensor


def masked(*valid: int) -> Masked:
    """A batch whose rows have so many valid labels each."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, VOCAB, (len(valid), 12), generator=generator)
    labels = ids.clone()
    for row, number in enumerate(valid):
        labels[row, number:] = -100
    return Masked(ids, labels)


def token_loss(model: nn.Module, batch: Masked) -> Tensor:
    return F.cross_entropy(model(batch.ids).flatten(0, 1), batch.labels.flatten())


def double_lm() -> TinyLM:
    torch.manual_seed(0)
    return TinyLM().double()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("others", [(), ("chunked_loss", "checkpointing")])
@pytest.mark.parametrize(
    ("valid", "number"),
    [((12, 3, 1, 7), 2), ((12, 3, 1, 7, 5), 4), ((0, 0, 5, 2), 2), ((5, 2, 0, 0), 2), ((4, 4, 4), 8), ((3,), 2)],
)
def test_gradients_are_those_of_the_whole_batch(valid: tuple[int, ...], number: int, others: tuple[str, ...]) -> None:
    """By name and in float64, with other numbers of valid labels in each part, none among them."""
    batch = masked(*valid)
    whole, model = double_lm(), double_lm()
    token_loss(whole, batch).backward()
    model, _, _ = whet.prepare(model, adamw(model.parameters()), [], recipe=recipe_of(number, *others))
    losses = []
    parts = whet.micro_batches(model, batch)
    for part in parts:
        assert type(part) is Masked
        loss = token_loss(model, part)
        loss.backward()
        losses.append(loss.detach())
    assert len(losses) == min(number, len(valid))
    torch.testing.assert_close(parts.whole(losses), token_loss(whole, batch).detach(), rtol=1e-12, atol=0)
    found, expected = gradients(model), gradients(whole)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-15, msg=name)
    means = double_lm()  # the fault that this is not
    for part in parts_of(batch, number):
        (token_loss(means, part) / len(losses)).backward()
    if len({sum(valid[i : i + 2]) for i in range(0, len(valid), 2)}) > 1 and len(losses) == 2:
        assert not torch.allclose(gradients(means)["head.weight"], expected["head.weight"], rtol=1e-2, equal_nan=False)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, t: F.mse_loss(y, t),
        F.l1_loss,  # taken before the loop began
        lambda y, t: nn.L1Loss()(y, t),
        lambda y, t: nn.BCEWithLogitsLoss()(y, t.sigmoid()),
        lambda y, t: F.smooth_l1_loss(y, t, reduction="sum"),
        lambda y, t: F.cross_entropy(y, t.argmax(1), label_smoothing=0.1),
        lambda y, t: F.cross_entropy(y, t.softmax(1)),
        lambda y, t: nn.CrossEntropyLoss(weight=torch.arange(1.0, 7.0).double())(y, t.argmax(1)),
        lambda y, t: F.nll_loss(y.log_softmax(1), t.argmax(1)),
        lambda y, t: F.cross_entropy(y, t.argmax(1)) + F.mse_loss(y, t),
    ],
    ids=["mse", "function", "l1", "bce", "sum", "smoothing", "probabilities", "weights", "nll", "two"],
)
def test_every_reduction_that_is_known(loss: Any) -> None:
    torch.manual_seed(1)
    x, target = torch.randn(7, 5).double(), torch.randn(7, 6).double()
    model = nn.Linear(5, 6).double()
    whole = copy.deepcopy(model)
    loss(whole(x), target).backward()
    whet.prepare(model, torch.optim.SGD(model.parameters()), [], recipe=recipe_of(3))
    for x_part, target_part in whet.micro_batches(model, (x, target)):
        loss(model(x_part), target_part).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, gradients(whole)[name], rtol=1e-9, atol=1e-15)


def test_gradients_of_before_are_added_to() -> None:
    model, whole = double_lm(), double_lm()
    first, second = masked(12, 3, 1, 7), masked(1, 9, 2, 2)
    for batch in (first, second):
        (token_loss(whole, batch) / 2).backward()
    whet.prepare(model, adamw(model.parameters()), [], recipe=recipe_of(2))
    for batch in (first, second):
        for part in whet.micro_batches(model, batch, factor=0.5):
            (token_loss(model, part) / 2).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, gradients(whole)[name], rtol=1e-9, atol=1e-15)


REFUSED = {
    "a sum by hand": (lambda y, t: ((y - t) ** 2).mean(), "takes no loss of torch.nn.functional"),
    "none": (lambda y, t: F.mse_loss(y, t, reduction="none").mean(), "is not reduced to a mean or a sum"),
    "scaled": (lambda y, t: F.mse_loss(y, t) * len(y), "multiplies the loss by 2"),
    "sum / n": (lambda y, t: F.mse_loss(y, t, reduction="sum") / len(y), "multiplies the loss by 0.5"),
    "more": (lambda y, t: F.mse_loss(y, t) + y.var(), "terms beside those of torch.nn.functional"),
    "not used": (lambda y, t: (F.mse_loss(y, t), F.l1_loss(y, t))[0], "with every loss it takes"),
    "contrastive": (lambda y, t: F.cross_entropy(y @ t.T, torch.arange(len(y))), "as many classes as there are sam"),
    "two": (lambda y, t: F.cross_entropy(y, t.argmax(1)) + F.cross_entropy(y, (t > 0).long()[:, 0] * -100), "proport"),
    "mixed": (lambda y, t: F.mse_loss(y, t) + F.l1_loss(y, t, reduction="sum"), "proportional"),
    "weighted": (lambda y, t: F.mse_loss(y, t, weight=t.abs()), "with weights is a mean"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_losses_that_cannot_be_weighed_are_refused(name: str) -> None:
    loss, message = REFUSED[name]
    x, target = torch.randn(4, 5), torch.randn(4, 6)
    target[:, 0] = torch.tensor([-1.0, -1.0, -1.0, 1.0])
    model = nn.Linear(5, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whet.prepare(model, optimizer, [], recipe=recipe_of(2))
    before = torch.ones_like(model.weight)
    model.weight.grad = before
    with pytest.raises(RecipeError, match=message):
        for x_part, target_part in whet.micro_batches(model, (x, target)):
            loss(model(x_part), target_part).backward()
    assert model.weight.grad is before, "what was summed before is there"
    with pytest.raises(RecipeError, match="the loop computes whole ones"):
        optimizer.step()


def test_other_parameters_and_whole_batches_are_refused() -> None:
    x, target = torch.randn(4, 5), torch.randn(4, 6)
    model, other = nn.Linear(5, 6), nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whet.prepare(model, optimizer, [], recipe=recipe_of(2))
    with pytest.raises(RecipeError, match="neither the model's nor the optimiser's"):
        for x_part, target_part in whet.micro_batches(model, (x, target)):
            F.mse_loss(other(model(x_part)), target_part).backward()
    F.mse_loss(model(x), target).backward()
    with pytest.raises(RecipeError, match=r"put `for batch in whet\.micro_batches"):
        optimizer.step()
    with pytest.raises(RecipeError, match=r"holds a tensor of shape \(3,\)"):
        whet.micro_batches(model, {"x": x, "other": torch.zeros(3)})
    with pytest.raises(RecipeError, match="4 samples holds str"):
        whet.micro_batches(model, (x, ["a", "b"]))


def test_batches_keep_their_kind() -> None:
    batch = OrderedDict(ids=torch.arange(5), scale=2.0, more=[torch.arange(5), None])
    first, second = parts_of(batch, 2)
    assert type(first) is OrderedDict
    assert first["ids"].tolist() == [0, 1]
    assert second["ids"].tolist() == [2, 3, 4]
    assert second["more"][0].tolist() == [2, 3, 4]
    assert second["scale"] == 2.0
    assert list(batch["ids"]) == list(range(5))


def test_without_a_recipe_a_batch_is_one_part() -> None:
    model = nn.Linear(5, 6)
    batch = torch.randn(4, 5)
    assert [part is batch for part in whet.micro_batches(model, batch)] == [True]


def test_where_it_applies() -> None:
    technique = TRAINING_TABLE["accumulation"]

    def verdict(model: nn.Module, batches: Any, number: int) -> Any:
        parts = Parts(model, torch.optim.SGD(model.parameters()), batches)
        return technique.check(parts, describe(), technique.options(num_parts=number))

    model = nn.Linear(5, 6)
    assert isinstance(verdict(model, [torch.zeros(4, 5)], 4), Applies)
    assert "has 4 samples" in verdict(model, [torch.zeros(4, 5)], 8).reason
    assert "has 2 samples" in verdict(model, DataLoader(torch.zeros(4, 5), batch_size=2), 4).reason  # type: ignore[arg-type]
    assert isinstance(verdict(model, iter([]), 4), Applies)
    assert "batch norms" in verdict(nn.BatchNorm1d(5), [], 2).reason
    assert isinstance(verdict(model, [], 1), NotApplicable)


def test_schedules_and_clipping_come_once_a_batch() -> None:
    """whet's own loop, with two batches a step, makes the steps of before."""
    changes = {"schedule": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda s: 1 / (s + 1)), "num_accumulated": 2}
    plain = Trainer(tiny_workload(**changes))
    split = trainer_with(tiny_workload(**changes), Step(technique="accumulation", options={"num_parts": 4}))
    for _ in range(3):
        torch.testing.assert_close(split.step(), plain.step(), rtol=1e-5, atol=0)
    assert split.optimizer.param_groups[0]["lr"] == plain.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 / 4)
    for mine, theirs in zip(split.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_wrapped_model_of_another_library_is_known() -> None:
    model = nn.Linear(5, 6)
    whet.prepare(model, torch.optim.SGD(model.parameters()), [], recipe=recipe_of(2))
    wrapped = nn.DataParallel(model)
    assert len(list(parts_of(torch.randn(4, 5), 2))) == 2
    assert len(whet.micro_batches(wrapped, torch.randn(4, 5))) == 2


LATER: dict[str, Any] = {
    "a sum over samples": lambda model, out: 0.01 * out.square().sum(),
    "a penalty on parameters": lambda model, out: 0.5 * sum(p.square().sum() for p in model.parameters()),
    "a mean by hand": lambda model, out: out.logsumexp(-1).square().mean(),
}


@pytest.mark.parametrize("begin", [0, 1, 3])
@pytest.mark.parametrize("term", LATER)
def test_terms_that_begin_later_are_refused_in_their_step(term: str, begin: int) -> None:
    """Auxiliary terms are often switched on after some steps; the first batch's graph says nothing of them."""
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(8, 5)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, _ = whet.prepare(model, optimizer, [], recipe=recipe_of(2))

    def step(number: int) -> None:
        optimizer.zero_grad()
        for x, y in whet.micro_batches(model, (torch.randn(4, 8), torch.arange(4))):
            out = model(x)
            loss = F.cross_entropy(out, y)
            (loss if number < begin else loss + LATER[term](model, out)).backward()
        optimizer.step()

    for number in range(begin):
        step(number)
    with pytest.raises(RecipeError, match="the loss has terms beside those of"):
        step(begin)


def test_a_term_with_a_backward_of_its_own_that_begins_later_is_refused() -> None:
    model: nn.Module = nn.Linear(8, 5)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, _ = whet.prepare(model, optimizer, [], recipe=recipe_of(2))
    for number in range(2):
        parts = whet.micro_batches(model, (torch.randn(4, 8), torch.arange(4)))
        with (
            pytest.raises(RecipeError, match="the loss has terms beside those") if number else contextlib.nullcontext()
        ):
            for x, y in parts:
                F.cross_entropy(model(x), y).backward()
                if number:
                    model(x).square().sum().backward()


def ended(number: int) -> Tensor:
    """Return the weights after a step with a closure that goes over so many parts."""
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(8, 5)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, _ = whet.prepare(model, optimizer, [], recipe=recipe_of(number))

    def closure() -> None:
        optimizer.zero_grad()
        for x, y in whet.micro_batches(model, (torch.ones(4, 8), torch.arange(4))):
            F.cross_entropy(model(x), y).backward()

    optimizer.step(closure)
    return next(model.parameters()).detach()


def test_parts_in_a_closure_are_seen_with_the_step() -> None:
    torch.testing.assert_close(ended(2), ended(4))
    model: nn.Module = nn.Linear(8, 5)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, _ = whet.prepare(model, optimizer, [], recipe=recipe_of(2))
    with pytest.raises(RecipeError, match="the loop computes whole ones"):
        optimizer.step(lambda: model(torch.ones(4, 8)).square().mean().backward())
