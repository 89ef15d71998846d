"""A model that waits before a gate, and how the tests of the engine look at it."""

import threading
import time
from collections.abc import Callable
from typing import Any

from hash_model import HashModel
from letters import EOS, Letters
from naive import naive_output
from torch import Tensor

from whet.models.step import StepBatch
from whet.server.engine import Engine
from whet.server.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12)
LONG = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)

ENDLESS = SamplingParams(temperature=0, max_tokens=50_000)


class GatedModel(HashModel):
    """Steps only while the gate is open; says when one waits before it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate, self.is_waiting = threading.Event(), threading.Event()
        self.num_let_pass = 0  # steps that don't ask

    def step(self, batch: StepBatch) -> Tensor:
        if self.num_let_pass:
            self.num_let_pass -= 1
            return super().step(batch)
        self.is_waiting.set()
        assert self.gate.wait(20)
        return super().step(batch)


def eventually(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not is_so() and time.monotonic() < end:
        time.sleep(0.002)
    return is_so()


def is_idle(engine: Engine) -> bool:
    stats = engine.stats()
    return (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)


def expected(prompt: str, params: SamplingParams = GREEDY) -> list[int]:
    return naive_output(HashModel().logits_after, Letters().encode(prompt), params, eos_ids=[EOS])
