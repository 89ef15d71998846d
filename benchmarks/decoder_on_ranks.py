"""Train the decoder of the benchmarks of several processes: its sizes, its step by whet's plan, and its processes."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn

from whet.measure.isolate import RANK, RENDEZVOUS, WORLD_SIZE
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.reference import Decoder

RANKS = 2
PARTS = 4, 4, 8  # bytes of a parameter, its gradient and Adam's state in float32
ROWS, LENGTH = 8, 128
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
STAGES = (0, 1, 2, 3)
Step = Callable[[Tensor], float]


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig.model_validate(SIZES))


def batches(number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(SIZES["vocab_size"], (ROWS, LENGTH + 1), generator=generator) for _ in range(number)]


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def by_whet(parallel: Any) -> Step:
    def step(ids: Tensor) -> float:
        summed = parallel.micro_batches(parallel.rows(ids))
        for part in summed:
            summed.backward(loss_of(parallel.model, part))
        parallel.clip_grad_norm_(1.0)
        parallel.optimizer.step()
        parallel.optimizer.zero_grad()
        found: float = summed.loss()
        return found

    return step


def timed(step: Step, ids: list[Tensor]) -> float:
    distributed.barrier()
    began = time.perf_counter()
    for one in ids:
        step(one)
    distributed.barrier()
    return time.perf_counter() - began


def on_ranks(job: Callable[..., dict[str, Any]], *asked: int, ranks: int = RANKS) -> dict[str, Any]:
    """Call a function in processes with one thread each, and return what the first of them measured."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as place:
        started = []
        for rank in range(ranks):
            variables = {RANK: str(rank), WORLD_SIZE: str(ranks), RENDEZVOUS: f"file://{place}/meeting"}
            one = context.Process(target=_as_rank, args=(variables, job, asked, theirs))
            one.start()
            started.append(one)
        theirs.close()
        found: dict[str, Any] = mine.recv()
        for one in started:
            one.join()
    return found


def _as_rank(variables: dict[str, str], job: Callable[..., dict[str, Any]], asked: tuple[int, ...], pipe: Any) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    found = job(*asked)
    if variables[RANK] == "0":
        pipe.send(found)
