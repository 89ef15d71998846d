"""Every training technique in every kind of loop: right, or refused by name, as it states itself."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loop_cells
import pytest
import torch
from loop_cells import LATE, emulated, in_one_process, net, prepared, rows
from torch import nn
from torch.nn.utils import clip_grad_norm_  # a reference of before whet.prepare, as scripts hold it

from whet.errors import RecipeError
from whet.measure.group import run_together
from whet.measure.isolate import Job
from whet.techniques.mechanisms.uses import Use
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_catalogue import loop_table

ROOT = Path(__file__).parents[3]
IN_ONE = (None, *(use for use in Use if use not in (Use.DDP, Use.FSDP2)))
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))}


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what both of two processes found, for all techniques."""
    place = tmp_path_factory.mktemp("pair")
    names = {"names": list(TRAINING_TABLE)}
    jobs = [Job(loop_cells.in_two_processes, names, place / str(rank), PATH) for rank in range(2)]
    outcomes = run_together(jobs, time_limit_s=400)
    assert [outcome.failure for outcome in outcomes] == [None, None]
    return [outcome.value or {} for outcome in outcomes]


def check(name: str, found: str, *, may_refuse: bool, must_refuse: bool) -> None:
    assert found == "right" or found.startswith("refused"), f"{name}: {found}"
    if must_refuse:
        assert found.startswith("refused"), f"{name} states that it refuses this, and went on: {found}"
        assert name in found, "the refusal names the technique"
    elif not may_refuse:
        assert found == "right", f"{name}: {found}"


@pytest.mark.parametrize("use", IN_ONE)
@pytest.mark.parametrize("name", TRAINING_TABLE)
def test_a_loop_in_one_process_is_right_or_refused(name: str, use: Use | None) -> None:
    if name == "lamb":
        pytest.importorskip("pytorch_optimizer")
    refuses = TRAINING_TABLE[name].refuses
    # accumulation says in its first step that the loop does not split, whose reason names the recipe.
    found = in_one_process(use, name).replace("the recipe splits each batch", "accumulation splits each batch")
    check(name, found, may_refuse=False, must_refuse=use in refuses)


@pytest.mark.parametrize("name", TRAINING_TABLE)
def test_two_processes_are_right_or_refused(name: str, parallel: list[dict[str, Any]]) -> None:
    if name == "lamb":
        pytest.importorskip("pytorch_optimizer")
    refuses = TRAINING_TABLE[name].refuses
    for found in parallel:
        for kind, what in found[name].items():
            must = Use(kind.split()[0]) in refuses
            check(name, what, may_refuse=kind == "FSDP2 with the head apart", must_refuse=must)


def test_processes_that_come_after_the_recipe_are_refused_before_an_update(parallel: list[dict[str, Any]]) -> None:
    for found in parallel:
        late = found["late"]
        assert {key.split()[0] for key in late} == set(LATE)
        for name in ("optimizer_in_backward", "bf16_parameters"):
            assert f"{name}: it does not bear DDP" in late[f"{name} DDP"]
        assert late["checkpointing DDP"] == "went on"
        for name in ("optimizer_in_backward", "checkpointing"):
            assert "call fully_shard first" in late[f"{name} FSDP2"]
            assert late[f"{name} new"] == "went on", "an optimiser of its own steps as without whet"
        # torch itself takes no mixture of dtypes.
        assert "FSDP expects uniform original parameter dtype" in late["bf16_parameters new"]


def read_norms(model: nn.Module, _: Any) -> None:
    sum(float(p.grad.norm()) for p in model.parameters() if p.grad is not None)


def scale_by_hand(model: nn.Module, _: Any) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad.mul_(0.5)


AFTER_BACKWARD: dict[str, Callable[[nn.Module, Any], Any]] = {
    "clip_grad_norm_": lambda model, _: clip_grad_norm_(model.parameters(), 1.0),
    "operator by operator": lambda model, _: clip_grad_norm_(model.parameters(), 1.0, foreach=False),
    "clip_grad_value_": lambda model, _: nn.utils.clip_grad_value_(model.parameters(), 1.0),
    "norms by hand": read_norms,
    "factors by hand": scale_by_hand,
    "another optimiser": lambda model, _: torch.optim.SGD(model.parameters(), lr=0.1).step(),
}


@pytest.mark.parametrize("how", AFTER_BACKWARD)
def test_whatever_needs_gradients_that_are_gone_says_so(how: str) -> None:
    model = net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared("optimizer_in_backward", model, optimizer, [])
    model(rows(2)).square().mean().backward()
    with pytest.raises(RecipeError, match="that optimizer_in_backward has used in backward already"):
        AFTER_BACKWARD[how](model, optimizer)


@pytest.mark.parametrize("zero", ["none", "zeros", "by hand", "after the step"])
def test_each_way_to_forget_gradients_allows_the_next_backward(zero: str) -> None:
    ends = []
    for changed in (False, True):
        model = net()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if changed:
            prepared("optimizer_in_backward", model, optimizer, [])
        for batch in rows(2).split(2):
            if zero == "by hand":
                for p in model.parameters():
                    p.grad = None
            elif zero != "after the step":
                optimizer.zero_grad(set_to_none=zero == "none")
            model(batch).square().mean().backward()
            optimizer.step()
            if zero == "after the step":
                optimizer.zero_grad()
        ends.append(loop_cells.flat(model))
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=0)


def test_a_loop_that_never_forgets_gradients_is_refused() -> None:
    model = net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared("optimizer_in_backward", model, optimizer, [])
    model(rows(2)).square().mean().backward()
    optimizer.step()
    with pytest.raises(RecipeError, match="calls backward twice before it sets gradients to zero"):
        model(rows(2)).square().mean().backward()


def test_a_model_with_gradients_that_are_gone_is_moved_copied_and_compiled() -> None:
    import copy
    import pickle

    model = net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    with emulated():
        prepared("optimizer_in_backward", model, optimizer, [])
        model(rows(2)).square().mean().backward()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(twin.state_dict(), state, rtol=0, atol=0)
        model.double().float()
        torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
        assert "optimizer_in_backward" in repr(next(model.parameters()).grad)
        optimizer.zero_grad()
        torch.compile(model)(rows(2)).square().mean().backward()


def test_the_documentation_shows_the_table() -> None:
    assert loop_table() in (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


def test_what_is_refused_has_a_reason() -> None:
    for technique in TRAINING_TABLE.values():
        assert all(isinstance(use, Use) and re.search(r"\w+ \w+", why) for use, why in technique.refuses.items())
