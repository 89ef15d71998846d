"""Small models with one or two traits that a graph may lose: branches, state, effects, what Python asks for.

Every trait changes the outputs by far more than any technique's rounding, on inputs that were not seen.
"""

import logging
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 32
_LOG = logging.getLogger("traits")
_CALLS: list[int] = []

Trait = Callable[["TraitModel", Tensor, Tensor], Any]  # the model, its input, what was computed so far


class TraitModel(nn.Module):
    """Linear layers, after which each trait has its say."""

    def __init__(self, *traits: str) -> None:
        super().__init__()
        self.traits = traits
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.num_calls = 0
        self.last: Tensor | None = None
        self.total = 0.0
        if "hook" in traits:
            self.second.register_forward_hook(_hook)

    def forward(self, x: Tensor) -> Any:
        y: Any = self.first(x)
        for name in self.traits:
            if isinstance(y, Tensor):
                y = TRAITS[name](self, x, y)
        return self.second(y) if isinstance(y, Tensor) else y


def _hook(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return torch.where(args[0].sum() > 0, output, 5 - output)


def _other(y: Tensor) -> Tensor:
    """What a branch that was not seen gives."""
    return 20 - 3 * y


def branch(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return y if x.sum() > 0 else _other(y)


def swallowed_branch(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    try:
        return y if x.sum() > 0 else _other(y)
    except Exception:  # noqa: BLE001 - as people write it
        return y


def branch_on_item(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return y if int(x.sum().item()) >= 0 else _other(y)


def loop_on_value(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    bound = x.sum()
    while bound < 0:
        y, bound = _other(y), bound + 1000
    return y


def cond(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.clone(), lambda y: 20 - 3 * y, (y,))


def where(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x.sum() > 0, y, _other(y))


def item(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return y * x.sum().sign().item()


def exporting(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return y if torch.compiler.is_exporting() or x.sum() > 0 else _other(y)


def printed(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return y if len(str(x.sum() > 0)) < 13 else _other(y)  # tensor(True) or tensor(False)


def strides(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return y if x.is_contiguous() else _other(y)


def gradients(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return _other(y) if torch.is_grad_enabled() else y


def one_row(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return _other(y) if x.shape[0] == 1 else y


def many_rows(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return _other(y) if x.shape[0] > 9 else y


def row_count(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return y * len(x)


def mode(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return _other(y) if model.training else nn.functional.dropout(y, 0.5, model.training)


def seeded(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(0)
    return y + 10 * torch.rand(WIDTH)


def unused_noise(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    torch.rand(3)
    return y


def python_noise(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    random.seed(1)
    return y + random.random()


def prints(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    print("a call")
    return y


def waits(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    time.sleep(0.002)
    return y


def counts(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    model.num_calls += 1
    return y


def counts_in_a_buffer(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    model.calls += 1
    return y


def counts_outside(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    _CALLS.append(1)
    return y


def changes_late(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    model.num_calls += 1
    return y if model.num_calls < 10_000 else _other(y)


def remembers(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    before, model.last = model.last, x
    return y if before is None else y + before.mean()


def keeps_last(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    model.last = y.detach()
    return y


def logs_quietly(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    _LOG.debug("a call")
    return y


def writes_into_input(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    x.clamp_(-100, 100)
    return y


def shared_outputs(model: TraitModel, x: Tensor, y: Tensor) -> Any:
    return y, y[:, 0], x, model.first.weight


def number(model: TraitModel, x: Tensor, y: Tensor) -> Any:
    return y, x.sum().item() > 0


def hook(model: TraitModel, x: Tensor, y: Tensor) -> Tensor:
    return y


TRAITS: dict[str, Trait] = {
    function.__name__: function
    for function in (
        *(branch, swallowed_branch, branch_on_item, loop_on_value, cond, where, item, exporting, printed, strides),
        *(gradients, one_row, many_rows, row_count, mode, seeded, unused_noise, python_noise, prints, waits, counts),
        *(counts_in_a_buffer, counts_outside, changes_late, remembers, keeps_last, logs_quietly, writes_into_input),
        *(shared_outputs, number, hook),
    )
}

# Traits that no graph can keep; row_count fixes the number of rows, which differs among the inputs.
REFUSED = frozenset({
    "branch", "swallowed_branch", "branch_on_item", "loop_on_value", "exporting", "seeded", "python_noise", "prints",
    "waits", "counts", "counts_in_a_buffer", "counts_outside", "changes_late", "remembers", "writes_into_input",
    "number", "printed", "row_count",
})  # fmt: skip


def positive(rows: int) -> Tensor:
    """Inputs of both signs whose sum is positive; negated, they take every branch that these do not."""
    x = torch.randn(rows, WIDTH).clamp(-2, 2)
    x[0, :2] = torch.tensor([2.0, -2.0])  # the range that a quantiser sees is the same for both
    return x if x.sum() > 0.5 else positive(rows)
