"""Conditions on sizes: which calls they let pass, and that nothing else than arithmetic is evaluated."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_programs import save
from torch import Tensor, nn

from whet.core.artefact import MANIFEST, load, read_manifest
from whet.core.artefact.program import ProgramRuntime, conditions
from whet.core.artefact.shape_guards import Guards
from whet.core.workload import Workload, examine
from whet.errors import ArtefactError
from whet.techniques.rewriting.graph import Traced, trace
from whet.techniques.technique import Candidate


def guards(*conditions: str) -> Guards:
    return Guards(conditions)


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
        "L['tensors'][0].size()[0] // 2 < max(5, L['tensors'][0].size()[1])": a // 2 < max(5, b),
        "L['tensors'][0].size()[0] > 3 or not L['tensors'][1].size()[0] != 7": a > 3 or c == 7,
        "math.ceil(L['tensors'][0].size()[0] / 3) <= 2": -(-a // 3) <= 2,
        "L['tensors'][0].stride()[0] == L['tensors'][0].size()[1] and L['tensors'][0].storage_offset() == 0": True,
    }
    for condition, expected in conditions.items():
        # The stride of a dimension of size one is whatever it was; a fresh tensor's is as if it were longer.
        assert holds(guards(condition), (a, b), (c,)) == expected
    assert holds(guards(*conditions), (a, b), (c,)) == all(conditions.values())


def test_no_conditions_hold_always() -> None:
    assert holds(guards(), (1, 2), (3,))


def test_division_by_a_size_of_zero_does_not_hold() -> None:
    assert not holds(guards("6 % (L['tensors'][0].size()[0] // 2) == 0"), (1, 1), (1,))
    assert holds(guards("6 % (L['tensors'][0].size()[0] // 2) == 0"), (4, 1), (1,))


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
        "L['tensors'][0].__class__.__mro__",
        "L['tensors'][0].numpy().tofile('f')",
        "L['tensors'][0].size().__class__",
        "L['tensors'][0].size(__import__('os'))",
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
        "1 <",
        "",
        "\0",
    ],
)
def test_anything_but_arithmetic_on_sizes_is_refused(condition: str) -> None:
    with pytest.raises(ArtefactError, match="under a condition that whet cannot check"):
        guards(condition)


def test_a_condition_that_cannot_be_checked_becomes_a_note(tmp_path: Path) -> None:
    examined = examine(Workload(model=Branching(), inputs=[torch.ones(4, 8), torch.ones(6, 9)]))
    runtime = ProgramRuntime.export(Candidate.original(examined).module, examined)
    odd = "Eq(L['tensors'][0].size()[0], oo)"
    runtime.save(tmp_path, examined.signature, None, ["a note"], [*conditions(examined), odd])
    manifest = read_manifest(tmp_path)
    assert manifest.notes == ["a note", "not checked when called: Eq(size 0 of input 0, oo)"]
    assert len(manifest.conditions) == len(conditions(examined)) >= 2


def test_conditions_in_a_manifest_are_read_as_data(tmp_path: Path) -> None:
    path = save(examine(Workload(model=Branching(), inputs=[torch.ones(4, 8)])), tmp_path) / MANIFEST
    data = json.loads(path.read_text())
    mark = tmp_path / "mark"
    data["conditions"] = [f"__import__('pathlib').Path('{mark}').write_text('ran')"]
    path.write_text(json.dumps(data))
    with pytest.raises(ArtefactError, match="under a condition that whet cannot check"):
        load(tmp_path)
    assert not mark.exists()


def test_a_graph_that_is_traced_again_keeps_the_conditions_of_the_first_tracing(tmp_path: Path) -> None:
    model = Branching()
    candidate = Candidate.original(examine(Workload(model=model, inputs=[torch.ones(4, 8), torch.ones(6, 9)])))

    body = trace(candidate.module, candidate.examined)  # the branches are gone from it
    candidate.with_module(Traced(body)).save(tmp_path)
    artefact = load(tmp_path)
    torch.testing.assert_close(artefact(torch.ones(2, 3)), model(torch.ones(2, 3)))
    with pytest.raises(ArtefactError, match="size 0 of input 0"):
        artefact(torch.ones(3, 8))
    with pytest.raises(ArtefactError, match="size 1 of input 0"):
        artefact(torch.ones(4, 101))


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


class OneRow(nn.Module):
    """Takes a path of its own for a single row, and raises for a single column."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.branches = branches

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.branches and x.shape[0] == 1:
            return x * 2 + y
        if self.branches and x.shape[1] == 1:
            raise ValueError("one column is none")
        return x - y


@pytest.mark.parametrize("branches", [True, False])
def test_a_size_of_one_is_tried(tmp_path: Path, branches: bool) -> None:
    """torch.export takes it for granted that a free size is 2 at least, and leaves no condition behind."""
    batches = [tuple(torch.randn(shape) for _ in range(2)) for shape in ((4, 5), (6, 7))]
    examined = examine(Workload(model=OneRow(branches).eval(), inputs=batches))
    artefact = load(save(examined, tmp_path / "artefact"))
    x, y = torch.randn(3, 2), torch.randn(3, 2)
    assert torch.equal(artefact(x, y), x - y)
    for dim, alone in enumerate((x[:1], x[:, :1])):
        if branches:
            with pytest.raises(ArtefactError, match=f"size {dim} of input 0 >= 2"):
                artefact(alone, alone)
        else:
            assert torch.equal(artefact(alone, alone), alone - alone)


def test_a_size_of_one_that_was_seen_is_tried_as_it_was(tmp_path: Path) -> None:
    """The graph is traced for a larger one all the same."""
    plain = examine(Workload(model=nn.Linear(4, 2).eval(), inputs=[torch.randn(1, 4), torch.randn(6, 4)]))
    assert load(save(plain, tmp_path / "plain")).manifest.conditions == []
    batches = [tuple(torch.randn(rows, 5) for _ in range(2)) for rows in (6, 1)]
    examined = examine(Workload(model=OneRow(branches=True).eval(), inputs=batches))
    conditions = load(save(examined, tmp_path / "branches")).manifest.conditions
    assert {f"L['tensors'][{i}].size()[0] >= 2" for i in range(2)} <= set(conditions)


class LogSpread(nn.Module):
    """Gives minus infinity for a single row, and takes a path of its own for it."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum(0) + 1 if x.shape[0] == 1 else x.sum(0)
        return torch.cat([(x - x.amax(0)).abs().sum(0).log(), total])


def test_a_size_of_one_is_tried_where_outputs_are_infinite(tmp_path: Path) -> None:
    batches = [torch.randn(rows, 5) for rows in (4, 6)]
    artefact = load(save(examine(Workload(model=LogSpread().eval(), inputs=batches)), tmp_path / "artefact"))
    with pytest.raises(ArtefactError, match="size 0 of input 0 >= 2"):
        artefact(torch.randn(1, 5))


class Last(nn.Module):
    """Reads each row at a place that another input names."""

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return x[torch.arange(len(x)), places]


def test_sizes_that_do_not_go_together_make_no_condition(tmp_path: Path) -> None:
    """A row cut to one entry has not the one that it is read at: no answer at all is no wrong one."""
    batches = [(torch.randn(3, length), torch.full((3,), length - 1)) for length in (5, 8)]
    artefact = load(save(examine(Workload(model=Last().eval(), inputs=batches)), tmp_path / "artefact"))
    x = torch.randn(3, 1)
    assert torch.equal(artefact(x, torch.zeros(3, dtype=torch.int64)), x[:, 0])
