"""TorchScript models: those with state of their own are refused, others are saved as what they are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whet.core.artefact import load
from whet.core.workload import Workload, examine
from whet.errors import ModelError, TargetError
from whet.techniques.technique import Candidate
from whet.tuner.batch import make, with_free_batch

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")


class Counter(nn.Module):
    calls: int

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x)  # type: ignore[no-any-return]


class Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.abs().sum(0) * 0)
        return x * 2


class History(nn.Module):
    history: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.history = [torch.zeros(1)]

    def forward(self, x: Tensor) -> Tensor:
        self.history.append(x)
        return x * 2


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1  # type: ignore[no-any-return]


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y = self.norm(x)
        y.relu_()
        return self.linear(y) * scale  # type: ignore[no-any-return]


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return x + 1
        return x - 1


class Sized(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) > 3:
            return x + 1
        return x - 1


def scripted(model: nn.Module) -> Any:
    return torch.jit.script(model.eval())


@pytest.mark.parametrize(
    ("model", "state"),
    [(Counter(), "calls"), (Buffer(), "seen"), (History(), "history"), (Outer(Counter()), "calls")],
)
def test_hidden_state_is_refused_for_what_it_is(model: nn.Module, state: str) -> None:
    workload = Workload(model=scripted(model), inputs=[torch.randn(3, 4)])
    with pytest.raises(ModelError, match=rf"TorchScript whose forward changes its own state \(.*{state}\)"):
        examine(workload)


@pytest.mark.parametrize("kind", ["script", "trace", "freeze"])
def test_other_scripts_are_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    plain, x = Plain().eval(), torch.randn(3, 4)
    model = {
        "script": scripted,
        "trace": lambda m: torch.jit.trace(m, x),
        "freeze": lambda m: torch.jit.freeze(scripted(m)),
    }[kind](plain)
    examined, batch = with_free_batch(examine(Workload(model=model, inputs=[x, torch.randn(3, 4)])))
    made = make(examined, [], tmp_path / "artefact", batch)
    assert made.fixed_batch is None or kind != "script"
    sizes = (1, 3, 7) if made.fixed_batch is None else (3,)
    for size in sizes:
        y = torch.randn(size, 4)
        torch.testing.assert_close(load(tmp_path / "artefact")(y), plain(y).detach())


def test_a_branch_on_a_size_is_fixed_to_the_path_taken(tmp_path: Path) -> None:
    examined, batch = with_free_batch(examine(Workload(model=scripted(Sized()), inputs=[torch.randn(3, 4)])))
    made = make(examined, [], tmp_path / "artefact", batch)
    assert made.fixed_batch == 3 and "size 0 of input 0 == 3" in made.notes[0]


def test_a_branch_on_values_is_refused(tmp_path: Path) -> None:
    examined = examine(Workload(model=scripted(Branch()), inputs=[torch.randn(3, 4)]))
    with pytest.raises(TargetError, match="cannot trace the model: its TorchScript branches on the values of tensors"):
        Candidate.original(examined).save(tmp_path / "artefact")


def test_a_scripted_part_of_another_module_is_named(tmp_path: Path) -> None:
    examined = examine(Workload(model=Outer(scripted(Plain())).eval(), inputs=[torch.randn(3, 4)]))
    with pytest.raises(TargetError, match="its part inner is TorchScript inside another module"):
        Candidate.original(examined).save(tmp_path / "artefact")
