"""Conditions on sizes: which calls they let pass, and that nothing else than arithmetic is evaluated."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_programs import save
from torch import Tensor, nn

from whet.artefact import load
from whet.artefact.guards import Guards
from whet.errors import ArtefactError
from whet.workload import Workload, examine


def guards(*conditions: str) -> Guards:
    return Guards(conditions, ["x", "y"])


def holds(found: Guards, *shapes: tuple[int, ...]) -> bool:
    try:
        found.check([torch.empty(shape) for shape in shapes])
    except ArtefactError:
        return False
    return True


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_conditions_are_what_they_say(a: int, b: int, c: int) -> None:
    conditions = {
        "L['tensors'][0].size()[0] % 2 == 0": a % 2 == 0,
        "L['tensors'][1].size()[0] == L['tensors'][0].size()[1]": c == b,
        "(L['tensors'][0].size()[0] // 2)*3 < max(5, L['tensors'][0].size()[1]) or not L['y'].size()[0] != 7": (
            (a // 2) * 3 < max(5, b) or c == 7
        ),
        "math.ceil(L['x'].size()[0] / 3) <= 2": -(-a // 3) <= 2,
        "L['x'].stride()[0] == L['x'].size()[1] and L['x'].storage_offset() == 0": True,
    }
    for condition, expected in conditions.items():
        # The stride of a dimension of size one is whatever it was; a fresh tensor's is as if it were longer.
        assert holds(guards(condition), (a, b), (c,)) == expected
    assert holds(guards(*conditions), (a, b), (c,)) == all(conditions.values())


def test_no_conditions_hold_always() -> None:
    assert holds(guards(), (1, 2), (3,))


def test_division_by_a_size_of_zero_does_not_hold() -> None:
    assert not holds(guards("6 % (L['x'].size()[0] // 2) == 0"), (1, 1), (1,))
    assert holds(guards("6 % (L['x'].size()[0] // 2) == 0"), (4, 1), (1,))


def test_the_message_names_the_condition_and_the_shapes() -> None:
    with pytest.raises(
        ArtefactError, match=r"holds only where size 1 of input 0 <= 512, and was .* \[2, 600\], \[1\]:"
    ):
        guards("L['tensors'][0].size()[1] <= 512").check([torch.empty(2, 600), torch.empty(1)])


@pytest.mark.parametrize(
    "condition",
    [
        "__import__('os').system('true')",
        "L.__class__",
        "L['x'].__class__.__mro__",
        "L['x'].numpy().tofile('f')",
        "L['x'].size().__class__",
        "L['x'].size(__import__('os'))",
        "math.__dict__",
        "math.floor.__self__",
        "max.__self__",
        "eval('1')",
        "[x for x in L]",
        "(lambda: 1)()",
        "(x := 1)",
        "f'{L}'",
        "open",
        "max(1, key=L)",
    ],
)
def test_anything_but_arithmetic_on_sizes_is_refused(condition: str) -> None:
    with pytest.raises(ArtefactError, match="under a condition that whet cannot check"):
        guards(condition)


class Branching(nn.Module):
    """Takes other paths for odd numbers of rows, and for wide inputs."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] % 2 == 0:
            x = x + 1
        if x.shape[1] > 100:
            x = 2 * x
        return x


def test_a_program_is_not_run_where_the_model_would_take_another_path(tmp_path: Path) -> None:
    model = Branching()
    artefact = load(save(examine(Workload(model=model, inputs=[torch.ones(4, 8), torch.ones(6, 9)])), tmp_path))
    for shape in ((2, 1), (8, 100)):
        torch.testing.assert_close(artefact(torch.ones(shape)), model(torch.ones(shape)))
    with pytest.raises(ArtefactError, match="size 0 of input 0"):
        artefact(torch.ones(3, 8))
    with pytest.raises(ArtefactError, match="size 1 of input 0 <= 100"):
        artefact.run(torch.ones(4, 101))
