"""What memory costs in a long-term-memory decoder: a token after long contexts, and a training step.

Used by families_peers.py. A token's time is the mean over a whole segment, since attention grows within one; contexts
take turns. Training steps with banks of three widths and those of the same decoder without one take turns too.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.comparison.claim import claim_of
from whet.models.memory_bank import Ltm, LtmConfig

SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "attention_block_size": 128,
    "memory_slots": 32,
}
CONTEXTS = [2**power for power in range(12, 18)]  # 4K to 128K
WIDTHS = (1.0, 0.5, 0.25)  # of a slot, over the model's
ROWS, TOKENS = 4, 1024  # of a training batch
GOALS = {"exponent": 0.05, "overhead": 1.15}
_PART = 4096


def measure(num_rounds: int) -> dict[str, Any]:
    """Return the costs, with two threads."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = Ltm(LtmConfig(**SHAPE)).eval()
    return {
        "shape": SHAPE,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "goals": GOALS,
        "token": _token(model, num_rounds),
        "training": {"rows": ROWS, "tokens": TOKENS, "widths": _training(2 * num_rounds)},
    }


def _token(model: Ltm, num_rounds: int) -> dict[str, Any]:
    """Return milliseconds a token after each context, and the power of the context that they grow with."""
    ids = torch.randint(0, SHAPE["vocab_size"], (1, CONTEXTS[-1]))
    state, states = model.new_state(), {}
    for begin in range(0, CONTEXTS[-1], _PART):
        model.step(ids[:, begin : begin + _PART], state)
        if begin + _PART in CONTEXTS:
            states[begin + _PART] = state.clone()
    times: dict[int, list[float]] = {length: [] for length in CONTEXTS}
    count = SHAPE["attention_block_size"]
    for number in range(num_rounds + 1):
        for length in CONTEXTS[:: -1 if number % 2 else 1]:
            here = states[length].clone()
            began = time.perf_counter()
            for place in range(count):
                model.step(ids[:, place : place + 1], here)
            if number:  # the first round warms up
                times[length].append(1e3 * (time.perf_counter() - began) / count)
    logs = np.log(CONTEXTS)
    exponents = [float(np.polyfit(logs, np.log(row), 1)[0]) for row in zip(*times.values(), strict=True)]
    draws = np.random.default_rng(0).choice(exponents, (2000, len(exponents))).mean(1)
    return {
        "ms": {str(length): float(np.median(found)) for length, found in times.items()},
        "state_bytes": {str(length): states[length].num_bytes for length in CONTEXTS},
        "exponent": float(np.mean(exponents)),
        "ci95": [float(x) for x in np.quantile(draws, (0.025, 0.975))],
    }


def _training(num_pairs: int) -> dict[str, dict[str, Any]]:
    """Return for each width of the bank the seconds of a step of both, and the time with the bank over that without.

    The ways take turns, forwards and backwards.
    """
    without = _steps(memory_slots=0)
    steps = {str(width): _steps(memory_compression_ratio=width) for width in WIDTHS}
    times: dict[str, tuple[list[float], list[float]]] = {width: ([], []) for width in steps}
    for number in range(num_pairs + 1):
        for width in sorted(steps, reverse=bool(number % 2)):
            pair = [(0, without), (1, steps[width])]
            for which, step in pair if number % 4 < 2 else pair[::-1]:
                began = time.perf_counter()
                step()
                if number:
                    times[width][which].append(time.perf_counter() - began)
    return {width: _ratio(*found) for width, found in times.items()}


def _ratio(without: list[float], with_bank: list[float]) -> dict[str, Any]:
    claim = claim_of(with_bank, without)
    return {
        "window_s": float(np.median(without)),
        "bank_s": float(np.median(with_bank)),
        "ratio": claim.ratio,
        "ci95": list(claim.ci95 or ()),
        "num_pairs": claim.num_pairs,
    }


def _steps(**config: Any) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Ltm(LtmConfig(**SHAPE | config)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids: Tensor = torch.randint(0, SHAPE["vocab_size"], (ROWS, TOKENS + 1))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(ids[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()

    return step
