"""Describe the techniques for training as catalogue.py describes those for inference, and what loops each bears."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from whet.measure.machine import describe
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import Use
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import TrainingTechnique


def loops_of(technique: TrainingTechnique) -> dict[str, str]:
    """Return every use of a loop, with why the technique does not bear it; "" where it does."""
    return {use.value: technique.refuses.get(use, "") for use in Use}


def loop_table() -> str:
    """Return the table of techniques and loops as Markdown, as docs/training.md shows it."""
    lines = [f"| technique | {' | '.join(Use)} |", "| --- |" + " --- |" * len(Use)]
    for name, technique in TRAINING_TABLE.items():
        cells = ("refused" if use in technique.refuses else "yes" for use in Use)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def runs_here(technique: TrainingTechnique) -> tuple[dict[str, list[Any]] | None, str]:
    """Return the values of each option that this machine accepts, or None and why it accepts none."""
    defaults = {name: values[0] for name, values in technique.space.items()}
    accepted = {
        name: [one for one in values if not _refusal(technique, {**defaults, name: one})]
        for name, values in technique.space.items()
    }
    reason = _refusal(technique, defaults)
    return (None, reason) if reason and not any(accepted.values()) else (accepted, "")


def _refusal(technique: TrainingTechnique, options: dict[str, Any]) -> str:
    """Return why no sample bears a technique with these options; "" where one does, or does what it would do."""
    verdicts = [technique.check(parts, describe(), technique.options(**options)) for parts in _samples()]
    if any(isinstance(one, Applies) or one.is_so for one in verdicts):
        return ""
    return next(one.reason for one in verdicts if isinstance(one, NotApplicable))


@cache
def _samples() -> tuple[Parts, ...]:
    """Return small loops that together have something for every technique, on each device of this machine."""
    return tuple(_made_samples())


def _made_samples() -> Iterator[Parts]:
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = _Sample().to(device)
        loader: Any = DataLoader([torch.zeros(16) for _ in range(16)], batch_size=8)  # type: ignore[arg-type]
        yield Parts(model, torch.optim.AdamW(model.parameters()), loader)
        yield Parts(model, _KeepsGradients(model.parameters(), lr=0.1), loader)
        yield Parts(model, torch.optim.RMSprop(model.parameters()), loader)


class _KeepsGradients(torch.optim.SGD):
    """Set gradients to zeros by default, as optimisers of older libraries do."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)


class _Sample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 1, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)) for _ in range(8))
        self.head = nn.Linear(16, 50257)

    def forward(self, x: Tensor) -> Tensor:
        """Turn [B, 16] into logits. Nobody calls it."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]
