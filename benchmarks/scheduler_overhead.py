"""What a step costs beside the model: scheduling, building the batch, choosing tokens, bringing requests up to date.

    python benchmarks/scheduler_overhead.py [--steps 2000] [--vocab 32000]

The model does nothing: it returns the same random logits. Requests decode in steady state, with text and without, on 1,
16 and 64 sequences; blocks are handed out as they go. Random logits are the hardest to sample from: nine tenths of the
probability are spread over half of the vocabulary. Times are medians in µs; their share is of a step of 15 ms, about
what a 246M model takes for 64 sequences on two cores. "choose" reads all logits once: 8.2 MB at 64 sequences. "engine"
is the time from step to step on the engine's own thread, with all that belongs to one.
"""

import argparse
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from quietly import quiet_machine
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from whet.models.step import Allocation, StepBatch, WithoutStates
from whet.server.blocks import Blocks
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.scheduler import Scheduler
from whet.server.stepper import Stepper
from whet.server.stopping import OutputText
from whet.server.text import Tokenizer
from whet.workloads import WEIGHTS

STEP_MS = 15.0
MAX_LEN = 32_768
GREEDY = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=None, ignore_eos=True)
TOP_K = dataclasses.replace(SAMPLED, top_k=50)
PENALISED = dataclasses.replace(SAMPLED, repetition_penalty=1.1, frequency_penalty=0.2)  # hundreds of tokens each
PARTS = ("schedule", "build", "choose", "update", "rest")


class NullModel(WithoutStates):
    """Takes no time and says nothing."""

    max_model_len, block_size, bytes_per_block = MAX_LEN, 16, 16

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._logits = torch.randn(64, vocab_size)

    def allocate(self, room: Allocation) -> None:
        pass

    def step(self, batch: StepBatch) -> Tensor:
        return self._logits[: len(batch.logit_rows)]


class Timed:
    """The time spent in some methods, each wrapped."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def wrap(self, owner: Any, method: str, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            result = original(*args)
            self.spent[name] = time.perf_counter() - began
            return result

        setattr(owner, method, timed)


def measure(num_seqs: int, params: SamplingParams, vocab_size: int, num_steps: int, has_text: bool) -> dict[str, float]:
    """Medians in µs of each part, and of the whole step."""
    blocks = Blocks(num_seqs * MAX_LEN // 16, 16, num_seqs, MAX_LEN)
    stepper = Stepper(NullModel(vocab_size), Scheduler(blocks, max_num_seqs=64, max_batch_tokens=512))
    tokenizer = Tokenizer(WEIGHTS / "docs-gpt")
    for i in range(num_seqs):
        prompt = np.random.default_rng(i).integers(0, 2000, 32).tolist()
        output = OutputText(tokenizer.detokenizer()) if has_text else None
        stepper.scheduler.add(Request(str(i), prompt, params, max_len=MAX_LEN, seed=i, output=output))
    for _ in range(32 * num_seqs // 512 + 50):
        stepper.step()
    timed = Timed()
    timed.wrap(stepper.scheduler, "schedule", "schedule")
    timed.wrap(stepper._runner, "build", "build")
    timed.wrap(stepper, "_choose", "choose")
    timed.wrap(stepper, "_update", "update")
    rows = []
    gc.collect()
    gc.freeze()
    for _ in range(num_steps):
        began = time.perf_counter()
        stepper.step()
        whole = time.perf_counter() - began
        rows.append({**timed.spent, "rest": whole - sum(timed.spent.values()), "step": whole})
    return {name: 1e6 * statistics.median(row[name] for row in rows) for name in (*PARTS, "step")}


def through_engine_us(num_seqs: int, params: SamplingParams, vocab_size: int) -> float:
    """The mean time from step to step on the engine's own thread, handing every token to a reader that ignores it."""
    with Engine(NullModel(vocab_size), EngineOptions(speculation="off", max_num_seqs=64)) as engine:
        for i in range(num_seqs):
            engine.submit([i + 1] * 32, params, on_delta=lambda delta: None)
        time.sleep(0.2)
        began, before = time.perf_counter(), engine.stats().num_steps
        time.sleep(0.5)
        steps, took_s = engine.stats().num_steps - before, time.perf_counter() - began
        assert engine.stats().num_running == num_seqs
    return 1e6 * took_s / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--vocab", type=int, default=32_000)
    args = parser.parse_args()
    columns = ("seqs", "tokens", *PARTS, "step", f"of {STEP_MS:g} ms", "engine")
    table = Table(*columns, title="µs a step, median; engine: mean", box=box.SIMPLE)
    for num_seqs in (1, 16, 64):
        for name, params, has_text in (
            ("greedy", GREEDY, False),
            ("greedy, text", GREEDY, True),
            ("sampled", SAMPLED, False),
            ("top-k", TOP_K, False),
            ("penalties", PENALISED, False),
        ):
            with quiet_machine():
                found = measure(num_seqs, params, args.vocab, args.steps, has_text)
                whole = "" if has_text else f"{through_engine_us(num_seqs, params, args.vocab):.0f}"
            share = f"{found['step'] / STEP_MS / 10:.2f} %"
            table.add_row(str(num_seqs), name, *(f"{found[part]:.0f}" for part in (*PARTS, "step")), share, whole)
    Console().print(table)


if __name__ == "__main__":
    main()
