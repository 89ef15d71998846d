"""What runs of a script found, made without a run."""

from pathlib import Path

import torch

from whet.core.recipe import Step
from whet.scripts.injection.command import ScriptOutcome
from whet.scripts.injection.messages import GRADIENTS, ScriptRecord
from whet.techniques.proof import gradients

FUSED = Step(technique="fused_optimizer")
AUTOCAST = Step(technique="autocast")
SHARES = {"forward": 0.5, "backward": 0.3, "optimiser": 0.1}


def outcome(directory: Path, scale: float = 1.0, noise: float = 0.0, **facts: object) -> ScriptOutcome:
    """A run with the gradients of three steps, scaled, with errors of relative size `noise`."""
    directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    true = {f"{i}.weight": torch.randn(64, generator=generator) for i in range(3)}
    found = {key: scale * (g + noise * torch.randn(64, generator=generator)) for key, g in true.items()}
    gradients.write(
        {k: v for key, g in found.items() for k, v in gradients.noted(key, g).items()}, directory / GRADIENTS
    )
    record = {"seconds": [0.1] * 9, "losses": [2.0 - 0.1 * i for i in range(10)], "learning_rates": [[0.1]] * 10}
    return ScriptOutcome(directory, ScriptRecord.model_validate({**record, **facts}))
