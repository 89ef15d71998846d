"""What torch.export makes part of a graph without a word: it is found by trying the graph on other inputs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whet.core.artefact import Artefact, load, program
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.errors import ArtefactError, TargetError
from whet.techniques.technique import Candidate


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.table = nn.Embedding(7, 4)
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def examined_as(function: Callable[..., Any], *inputs: Any) -> ExaminedWorkload:
    return examine(Workload(model=Lambda(function), inputs=list(inputs) or [torch.rand(3, 4)]))


def loaded(function: Callable[..., Any], path: Path, *inputs: Any) -> tuple[nn.Module, Artefact]:
    examined = examined_as(function, *inputs)
    return examined.workload.model, load(Candidate.original(examined).save(path / "artefact"))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda m, x: m.linear(x) if x.sum() > 0 else x, r"of its tensors \(.*test_probes.py:\d+ \(<lambda>\)\)"),
        (lambda m, x: x * 2 if torch.equal(x, x.abs()) else x, r"values of its tensors"),
        (lambda m, x: x * (1 if torch.compiler.is_exporting() else x.sign()), "with its inputs negated it answers"),
        (lambda m, x: x * len(str(x.sum() > 0)), "with its inputs negated it answers"),
        (lambda m, x: (torch.default_generator.manual_seed(0), x + torch.rand(4))[1], r"random numbers \(aten.rand.de"),
        (lambda m, x: (x + 1, x.sum().item() > -99), "returns a number that depends on its inputs"),
        (lambda m, x: (x + 1, x.int().sum().item()), "returns a number that depends on its inputs"),
        (lambda m, x: (print(), x + 1)[1], r"forward prints in .*: a graph of the model would leave that out"),
    ],
)  # fmt: skip
def test_no_graph_can_stand_for_it(function: Callable[..., Any], reason: str) -> None:
    examined = examined_as(function)
    with pytest.raises(TargetError, match=reason):
        program.export(Candidate.original(examined).module, examined)
    assert program.refusal(examined)
    assert program.refusal(examined) == program.refusal(examined)  # as it was kept


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: (torch.rand(3), m.linear(x))[1],  # as in models that drop layers while they are trained
        lambda m, x: nn.functional.dropout(m.linear(x), 0.5, False),
        lambda m, x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    ],
)
def test_numbers_that_are_not_drawn_or_not_used(function: Callable[..., Any]) -> None:
    assert program.refusal(examined_as(function)) == ""


def test_strides_that_the_code_asks_for(tmp_path: Path) -> None:
    model, artefact = loaded(lambda m, x: x + 1 if x.is_contiguous() else x - 1, tmp_path, torch.rand(3, 4))
    x = torch.rand(4, 3).T
    assert artefact.manifest.conditions == ["L['tensors'][0].is_contiguous()"]
    with pytest.raises(ArtefactError, match=r"input 0 is contiguous.*strides \(1, 3\)"):
        artefact(x)
    assert torch.equal(artefact(x.contiguous()), model(x.contiguous()))


def test_the_rows_of_a_table(tmp_path: Path) -> None:
    model, artefact = loaded(lambda m, i: m.table(i.flatten()), tmp_path, torch.tensor([[0, 3]]))
    for wrong in ([[0, 7]], [[-1, 0]]):
        with pytest.raises(IndexError):
            model(torch.tensor(wrong))
        with pytest.raises(ArtefactError, match=r"value of input 0 .=.*a table has no rows for other values"):
            artefact(torch.tensor(wrong))
    ends = torch.tensor([[0, 6]])
    assert torch.equal(artefact(ends), model(ends))


def test_a_part_of_an_input_is_no_table_of_it(tmp_path: Path) -> None:
    _, artefact = loaded(lambda m, i: m.table(i[:, 1:]), tmp_path, torch.tensor([[99, 3]]))
    assert artefact.manifest.conditions == []


def test_the_gradient_mode_that_the_code_asks_for(tmp_path: Path) -> None:
    model, artefact = loaded(lambda m, x: x + 1 if torch.is_grad_enabled() else x - 1, tmp_path)
    x = torch.rand(3, 4)
    with pytest.raises(ArtefactError, match="only where gradients are off"):
        artefact(x)
    with torch.no_grad():
        assert torch.equal(artefact(x), model(x))


def test_what_stands_around_a_call(tmp_path: Path) -> None:
    _, artefact = loaded(lambda m, x: m.linear(x), tmp_path)
    x = torch.rand(3, 4)
    with pytest.raises(ArtefactError, match="an input requires gradients"):
        artefact(x.clone().requires_grad_())
    with torch.no_grad():
        artefact(x.clone().requires_grad_())
    with pytest.raises(ArtefactError, match=r"outside torch\.autocast"), torch.autocast("cpu"):
        artefact(x)
    with pytest.raises(ArtefactError, match="in evaluation mode for good"):
        artefact.train()
    assert artefact.eval().train(False) is artefact


def test_every_output_is_a_tensor_of_its_own(tmp_path: Path) -> None:
    model, artefact = loaded(lambda m, x: ((y := m.linear(x)), y[:, 0], x, m.linear.weight), tmp_path)
    x = torch.rand(3, 4)
    expected = [y.detach().clone() for y in model(x)]
    for _ in range(2):  # what a caller writes into an output is seen by nobody else
        found = artefact(x)
        for y, wanted in zip(found, expected, strict=True):
            assert torch.equal(y, wanted)
            y.zero_()
    assert torch.equal(x, expected[2])
    assert artefact.manifest.notes == [
        "outputs that share memory with something else in the model are tensors of their own: 1, 2, 3"
    ]


def test_constants_are_the_same_in_kind(tmp_path: Path) -> None:
    model = Lambda(lambda m, x: x)
    model.forward = lambda x, scale: x * 2 if isinstance(scale, bool) else x * scale  # type: ignore[method-assign]
    examined = examine(Workload(model=model, inputs=[{"x": torch.rand(3), "scale": True}]))
    artefact = load(Candidate.original(examined).save(tmp_path / "artefact"))
    assert artefact(x=torch.ones(3), scale=True).tolist() == [2, 2, 2]
    for other in (1, 1.0, None, "True"):
        with pytest.raises(TargetError, match="scale=True"):
            artefact(x=torch.ones(3), scale=other)


def test_sizes_of_zero_that_take_another_path(tmp_path: Path) -> None:
    def function(m: Lambda, x: Tensor) -> Tensor:
        return m.linear(x).sum(0) if x.shape[0] else torch.ones(4)

    model, artefact = loaded(function, tmp_path, torch.rand(3, 4), torch.rand(5, 4))
    with pytest.raises(ArtefactError, match="size 0 of input 0 >= 1"):
        artefact(torch.rand(0, 4))
    torch.testing.assert_close(artefact(torch.rand(1, 4) * 0), model(torch.zeros(1, 4)).detach())
