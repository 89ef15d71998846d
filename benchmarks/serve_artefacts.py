"""What serving an artefact costs and gains: the batcher's own time per request, and many clients beside one.

    python benchmarks/serve_artefacts.py [--requests 4000] [--rounds 8] [--seconds 4] [--try]

The batcher: a function that returns part of its input takes single samples from coroutines, 1 and 16 at a time. Its own
time is that of all requests less what the function itself took; the median of the rounds, in µs per request. Beside
it stands a bare hand-over: a thread wakes another one and is woken by it. One request at a time costs at least that.

Over HTTP: docs-encoder, saved as `whet tune` saves the original, behind `whet serve` in a process of its own. Clients
send one passage each, as bytes, on connections that stay open; 1 client and 16 clients in turns, so that both see the
same machine. Every answer is compared with whet.load's. --try runs on a busy machine too and writes nothing.
"""

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from circumstances import circumstances
from quietly import quiet_machine
from torch import Tensor

from whet.core.artefact import load
from whet.core.signature import read_signature
from whet.core.workload import examine
from whet.files import write_whole
from whet.server.artefacts.served_artefact import ServedArtefact
from whet.techniques.technique import Candidate
from whet.tuner.batch import with_free_batch
from whet.workloads import resolve

RESULT = Path(__file__).parents[1] / "docs" / "results" / "serve_artefacts.json"
CLIENTS = 16
TARGET_US, TARGET_RATIO = 50.0, 1.5
NAME = "docs-encoder"
_TOLERANCE = 1e-3


class Shortened:
    """Returns part of its input, and adds up the time that this takes."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def __call__(self, x: Tensor) -> tuple[Tensor]:
        began = time.perf_counter()
        y = x[:, :10]
        self.spent_s += time.perf_counter() - began
        return (y,)


def batcher_us(num_clients: int, num_requests: int, rounds: int) -> list[float]:
    """The batcher's own time per request in each round, in µs."""
    function = Shortened()
    batches = [torch.zeros(2, 256), torch.zeros(3, 256)]
    artefact: Any = SimpleNamespace(
        signature=read_signature(batches, function(batches[0])),
        run=function,
        manifest=SimpleNamespace(conditions=(), runtime="program"),
        runtime=SimpleNamespace(ranges_per_call=False),
    )
    served = ServedArtefact("shortened", artefact)
    x = torch.zeros(1, 256)

    async def client() -> None:
        for _ in range(num_requests // num_clients):
            await served.infer([x])

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(num_clients)))

    found = []
    for _ in range(rounds + 1):
        function.spent_s = 0.0
        began = time.perf_counter()
        asyncio.run(clients())
        took_s = time.perf_counter() - began - function.spent_s
        found.append(took_s / (num_requests // num_clients * num_clients) * 1e6)
    served.close()
    return found[1:]  # the first one warms up


def hand_over_us(num_rounds: int) -> float:
    """Return how long two threads take to wake each other in turn, in µs for both."""
    mine, theirs = threading.Lock(), threading.Lock()
    mine.acquire()
    theirs.acquire()

    def answer() -> None:
        for _ in range(num_rounds):
            theirs.acquire()
            mine.release()

    thread = threading.Thread(target=answer)
    thread.start()
    began = time.perf_counter()
    for _ in range(num_rounds):
        theirs.release()
        mine.acquire()
    took_s = time.perf_counter() - began
    thread.join()
    return took_s / num_rounds * 1e6


@dataclass(frozen=True)
class Passages:
    """What the clients send, and what whet.load answers."""

    bodies: list[tuple[bytes, str]]
    expected: Tensor


def passages(directory: Path) -> Passages:
    """Save docs-encoder, and return passages with its answers. directory: for the artefact."""
    examined, _ = with_free_batch(examine(resolve(NAME), with_quality=False))
    Candidate.original(examined).save(directory)
    texts = torch.cat([flat[0] for flat in examined.flat_inputs])
    bodies = []
    for text in texts:
        content = text.numpy().astype("<i8").tobytes()
        given = {"name": "input_0", "datatype": "INT64", "shape": [1, len(text)]}
        given["parameters"] = {"binary_data_size": len(content)}
        head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
        bodies.append((head + content, str(len(head))))
    with torch.no_grad():
        return Passages(bodies, load(directory)(texts))


def per_second(url: str, sent: Passages, num_clients: int, seconds: float) -> float:
    """Requests answered per second by so many clients, each of which sends one when the last is answered."""
    ends = time.perf_counter() + seconds
    counts, wrong = [0] * num_clients, []

    def client(number: int) -> None:
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        while time.perf_counter() < ends:
            which = (number + counts[number] * num_clients) % len(sent.bodies)
            body, length = sent.bodies[which]
            connection.request("POST", f"/v2/models/{NAME}/infer", body, {"Inference-Header-Content-Length": length})
            answer = connection.getresponse()
            content = answer.read()
            head_size = int(answer.headers["Inference-Header-Content-Length"])
            found = torch.from_numpy(np.frombuffer(content[head_size:], "<f4").copy())
            if not torch.allclose(found, sent.expected[which], rtol=_TOLERANCE, atol=_TOLERANCE):
                wrong.append(which)
            counts[number] += 1
        connection.close()

    began = time.perf_counter()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        sys.exit(f"{len(wrong)} answers differ from whet.load's")
    return sum(counts) / (time.perf_counter() - began)


def over_http(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Requests per second in each round, of one client and of many."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / NAME
        sent = passages(directory)
        command = [sys.executable, "-m", "whet", "serve", str(directory), "--port", "0", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            per_second(url, sent, CLIENTS, 1.0)
            found: dict[str, list[float]] = {"one": [], "many": []}
            for number in range(rounds):
                for key in ("one", "many") if number % 2 else ("many", "one"):
                    found[key].append(per_second(url, sent, 1 if key == "one" else CLIENTS, seconds))
            return found
        finally:
            process.terminate()
            process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn over HTTP")
    parser.add_argument("--try", dest="is_trial", action="store_true", help="measure whatever else runs; write nothing")
    options = parser.parse_args()
    with nullcontext() if options.is_trial else quiet_machine():
        costs = {str(count): batcher_us(count, options.requests, options.rounds) for count in (1, CLIENTS)}
        hand_over = statistics.median(hand_over_us(options.requests) for _ in range(options.rounds))
        rates = over_http(options.rounds, options.seconds)
    ratios = [many / one for one, many in zip(rates["one"], rates["many"], strict=True)]
    given = f"--requests {options.requests} --rounds {options.rounds} --seconds {options.seconds:g}"
    report: dict[str, Any] = {
        **circumstances(f"python benchmarks/serve_artefacts.py {given}"),
        "clients": CLIENTS,
        "target_us": TARGET_US,
        "target_ratio": TARGET_RATIO,
        "batcher_us": {count: statistics.median(times) for count, times in costs.items()},
        "hand_over_us": hand_over,
        "per_second": {key: statistics.median(found) for key, found in rates.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }
    if not options.is_trial:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        write_whole(RESULT, json.dumps(report, indent=1) + "\n")
    for count, cost in report["batcher_us"].items():
        print(f"batcher, {count} at a time: {cost:.0f} µs a request (target {TARGET_US:.0f})")
    print(f"a bare hand-over between two threads and back: {report['hand_over_us']:.0f} µs")
    one, many = report["per_second"]["one"], report["per_second"]["many"]
    print(
        f"{NAME}: 1 client {one:.0f}/s, {CLIENTS} clients {many:.0f}/s: {report['ratio']:.2f}x (target {TARGET_RATIO}x)"
    )


if __name__ == "__main__":
    main()
