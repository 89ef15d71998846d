"""What every contender is asked, and the figures made of its answers."""

import contextlib
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from serving_peers.contender import Contender, Request
from serving_peers.mix import MIX
from serving_peers.shape import CONFIG

DECODE_PROMPTS = (32, 128)
PREFILLS = (128, 1024)
CONTEXTS = (128, 512, 1024, 2048, 4096)
_NUM_DECODED = 128
_NUM_AT_CONTEXT = 49  # one from the prompt, 48 after it
_CHUNK = 8
_FIRST_WORD = 3  # after the special tokens


class Prompts:
    """Tokens at random, never the same twice, in no other task either: nothing can be had from a prefix cache."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def request(self, num_prompt: int, num_tokens: int) -> Request:
        last = CONFIG["vocab_size"] - 1
        return Request([self._random.randint(_FIRST_WORD, last) for _ in range(num_prompt)], num_tokens)


def decode(contender: Contender, prompts: Prompts) -> dict[str, Any]:
    """Tokens per second after the first one, of one request alone; by length of the prompt. The first is to warm up."""
    rates = {}
    for length in DECODE_PROMPTS:
        times_s = [_timed(contender, prompts.request(length, _NUM_DECODED)) for _ in range(4)][1:]
        rates[str(length)] = statistics.median((len(t) - 1) / (t[-1] - t[0]) for t in times_s)
    return {"tokens_per_s": rates}


def prefill(contender: Contender, prompts: Prompts) -> dict[str, Any]:
    """Prompt tokens per second up to the first token; by length of the prompt."""
    rates = {}
    for length in PREFILLS:
        times = [_timed(contender, prompts.request(length, 1))[0] for _ in range(6)][1:]
        rates[str(length)] = length / statistics.median(times)
    return {"tokens_per_s": rates}


def contexts(contender: Contender, prompts: Prompts) -> dict[str, Any]:
    """Milliseconds for one token more, by the tokens before it: the median over chunks of 8, for one request a length.

    The first length is asked twice, to warm up.
    """
    times_ms = {}
    for length in (CONTEXTS[0], *CONTEXTS):
        times_s = _timed(contender, prompts.request(length, _NUM_AT_CONTEXT))
        chunks = [(times_s[i + _CHUNK] - times_s[i]) / _CHUNK for i in range(0, _NUM_AT_CONTEXT - 1, _CHUNK)]
        times_ms[str(length)] = 1e3 * statistics.median(chunks)
    return {"ms_per_token": times_ms}


def mix(contender: Contender, prompts: Prompts) -> dict[str, Any]:
    """Output tokens per second of 16 requests given at once, from then until all are done; the second of two runs."""
    for _ in range(2):
        requests = [prompts.request(*lengths) for lengths in MIX]
        start = time.perf_counter()
        outputs = contender.serve(requests)
        wall_s = time.perf_counter() - start
        for request, output in zip(requests, outputs, strict=True):
            _check_count(request, output)
    return {"output_tokens_per_s": sum(map(len, outputs)) / wall_s, "wall_s": wall_s}


def agreement(contender: Contender, prompts: Prompts) -> dict[str, Any]:
    """The first tokens after a few prompts, the same prompts for every engine: shows that all compute one model."""
    first = [contender.generate(prompts.request(24, 1)).tokens[0] for _ in range(32)]
    return {"first_tokens": first}


Task = Callable[[Contender, Prompts], dict[str, Any]]
TASKS: dict[str, Task] = {
    "agreement": agreement,
    "decode": decode,
    "prefill": prefill,
    "contexts": contexts,
    "mix": mix,
}


def run_task(name: str, contender: Contender, seed: int) -> dict[str, Any]:
    """One task's figures, with the cores that this process kept busy meanwhile, and that others did."""
    with busy_cores() as busy:
        figures = TASKS[name](contender, Prompts("agreement" if name == "agreement" else f"{name} {seed}"))
    return figures | busy


@contextlib.contextmanager
def busy_cores() -> Iterator[dict[str, float]]:
    """How many cores this process kept busy meanwhile, and how many others did; known at the end of the block.

    Others: other processes, and other machines on the same hardware, as far as the kernel is told.
    """
    busy: dict[str, float] = {}
    wall, own, all_ = time.perf_counter(), time.process_time(), _busy_seconds()
    yield busy
    wall_s, own_s, all_s = time.perf_counter() - wall, time.process_time() - own, _busy_seconds() - all_
    busy |= {"busy_cores": own_s / wall_s, "others_busy_cores": max(0.0, all_s - own_s) / wall_s}


def _busy_seconds() -> float:
    """CPU seconds since the start of the machine in which a core was not idle, or was taken away; 0 if unknown."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _timed(contender: Contender, request: Request) -> list[float]:
    timeline = contender.generate(request)
    _check_count(request, timeline.tokens)
    if len(timeline.times_s) != len(timeline.tokens):
        raise RuntimeError(f"{len(timeline.tokens)} tokens came, and {len(timeline.times_s)} times of them")
    return timeline.times_s


def _check_count(request: Request, output: list[int]) -> None:
    if len(output) != request.num_tokens:
        raise RuntimeError(f"{request.num_tokens} tokens were asked for, {len(output)} came")
