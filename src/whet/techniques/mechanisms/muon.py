"""Update matrices with Muon and everything else with AdamW, as one optimiser."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from whet.techniques.mechanisms.optimizers import loss_of


class MuonWithAdamW(Optimizer):
    """Share a group's learning rate and decay between Muon and AdamW. Muon's step is scaled to AdamW's size."""

    def __init__(self, params: Iterable[Any], matrices: Iterable[nn.Parameter]) -> None:
        """Take parameters or groups of them as AdamW does, and those with two dimensions that Muon updates."""
        super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2})
        chosen = list(matrices)
        self._matrices = {id(p) for p in chosen}
        self._muon = torch.optim.Muon(chosen, adjust_lr_fn="match_rms_adamw")
        self._adamw = torch.optim.AdamW(chosen)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = loss_of(closure)
        for group in self.param_groups:
            common = {name: group[name] for name in ("lr", "weight_decay")}
            matrices = [p for p in group["params"] if id(p) in self._matrices]
            others = [p for p in group["params"] if id(p) not in self._matrices]
            self._update(self._muon, matrices, common)
            self._update(self._adamw, others, {**common, "betas": group["betas"], "eps": group["eps"]})
        return loss

    def _update(self, algorithm: Optimizer, parameters: list[nn.Parameter], settings: dict[str, Any]) -> None:
        if parameters:
            algorithm.state = self.state
            algorithm.param_groups = [{**algorithm.defaults, **settings, "params": parameters}]
            algorithm.step()
