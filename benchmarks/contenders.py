"""Processes that are each ready to call a model, idle but for their turn, and are asked for bursts of calls in turns.

A script starts itself as a worker, which says "ready" or what else it knows, and then answers with `serve_bursts`.
"""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from whet.measure.clock import measure_calls

Worker = subprocess.Popen[str]
_BURST_S = 0.4


def started(script: str, *arguments: str) -> Worker:
    """Start a script as a worker."""
    return subprocess.Popen(
        [sys.executable, script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def answer(worker: Worker) -> str | None:
    """Wait for a worker's next answer; None where it has ended."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("answer "):
            return line.removeprefix("answer ").strip()
    return None


def bursts_in_turns(workers: Mapping[str, Worker], rounds: int, order: random.Random) -> dict[str, list[float]]:
    """Return the latency, in ms, of a burst of each worker in each round, whose order is drawn; end the workers."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name in order.sample(list(workers), len(workers)):
            worker = workers[name]
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
            latency_ms = answer(worker)
            if latency_ms is None:
                raise SystemExit(f"the process of {name} ended; its message stands above")
            times[name].append(float(latency_ms))
    for worker in workers.values():
        worker.communicate("stop\n")
    return times


def serve_bursts(call: Callable[[], Any], ready: str) -> None:
    """In a worker: say that it is ready, then time a burst of calls whenever asked."""
    time.sleep(0.2)
    print(f"answer {ready}", flush=True)
    for line in sys.stdin:
        if line.strip() != "go":
            return
        print(f"answer {measure_calls([call], budget_s=_BURST_S).latency_ms:.6f}", flush=True)
