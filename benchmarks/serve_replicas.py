"""What `whet serve --replicas 2` gains and costs: throughput, the proxy's own time, prefix hits, and a kill under load.

    python benchmarks/serve_replicas.py [--model docs-gpt] [--rounds 8] [--seconds 5] [--requests 1000] [--try]

- Throughput: 32 clients, prompts of their own, 64 tokens each. Two replicas, each on half of the cores, and one server
  on all of them, in turns on the same machine.
- The proxy's time: 1 and 16 clients, each with one request of 8 tokens after the other, through the proxy, and in turns
  to the replicas themselves on their Unix sockets, half of the clients to each. Whole answers and streams (the time to
  the first event). What is added is the difference of the medians and of the 99th percentiles of all rounds. Where two
  replicas have all cores, the proxy takes its time from them: what it computes for a request is counted beside.
- Prefix hits: conversations that grow by a turn, with one of four instructions at their beginning, sent in a random
  order, by the proxy and to the replicas in turn. The engines count the tokens that they find.
- Answered: requests at a steady rate. One replica is killed with -9 after a third of them, and SIGHUP replaces all
  after two thirds.

--try runs on a busy machine too and writes nothing.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from circumstances import circumstances
from prometheus_client.parser import text_string_to_metric_families
from quietly import quiet_machine

from whet.files import write_whole

RESULT = Path(__file__).parents[1] / "docs" / "results" / "serve_replicas.json"
TARGET_MS = 1.0
THROUGHPUT_CLIENTS, CLIENTS = 32, (1, 16)
_LIMIT_S = 120.0
_WORDS = "sharpen the edge of a tool by turning it on stone and water until light falls off both sides of steel".split()
_fresh = itertools.count()

Place = str | tuple[str, int]
"""A Unix socket's path, or host and port."""


@dataclass
class Server:
    process: subprocess.Popen[str]
    place: tuple[str, int]

    @property
    def replicas(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    @property
    def sockets(self) -> list[str]:
        """The Unix sockets of the replicas."""
        paths = {str(one.laddr) for child in self.replicas for one in child.net_connections("unix")}
        return sorted(path for path in paths if path.endswith(".socket"))


@contextmanager
def serving(model: str, *options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "whet", "serve", model, *options, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        parts = urlsplit(json.loads(process.stdout.readline())["url"])
        yield Server(process, (parts.hostname or "", parts.port or 0))
    finally:
        process.terminate()
        process.wait(60)


class Connection:
    """One connection that stays open."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes, float]:
        """Return the status, the body, and the seconds until the first byte of the answer's body."""
        if self._streams is None:
            is_file = isinstance(self._place, str)
            opened = asyncio.open_unix_connection(self._place) if is_file else asyncio.open_connection(*self._place)
            self._streams = await opened
        reader, writer = self._streams
        content = b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        began_s = time.perf_counter()
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(answer.split(None, 2)[1])
        if b"transfer-encoding: chunked" not in answer:
            length = int(answer.partition(b"content-length:")[2].split(None, 1)[0])
            whole = await reader.readexactly(length)
            return status, whole, time.perf_counter() - began_s
        pieces, first_s = [], 0.0
        while size := int(await reader.readuntil(b"\r\n"), 16):
            pieces.append((await reader.readexactly(size + 2))[:-2])
            first_s = first_s or time.perf_counter() - began_s
        await reader.readexactly(2)
        return status, b"".join(pieces), first_s

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def completion(prompt: str, num_tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, **more}


def fresh_prompt(length: int = 24) -> str:
    """A prompt that no other request has."""
    chosen = random.Random(next(_fresh))
    return " ".join(chosen.choice(_WORDS) for _ in range(length))


async def clients(
    places: Sequence[Place], seconds: float, body: Callable[[], dict[str, Any]]
) -> tuple[int, float, list[float]]:
    """Let one client at each place send a request after the other: their number, the time, and each one's seconds."""
    times: list[float] = []
    ends_s = time.perf_counter() + seconds

    async def client(place: Place) -> None:
        connection = Connection(place)
        while time.perf_counter() < ends_s:
            status, content, took_s = await connection.ask("/v1/completions", body())
            if status != 200:
                sys.exit(f"answered with {status}: {content[:200]!r}")
            times.append(took_s)
        connection.close()

    began_s = time.perf_counter()
    await asyncio.gather(*map(client, places))
    return len(times), time.perf_counter() - began_s, times


def throughput(model: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Tokens per second of two replicas and of one server, in turns."""
    found: dict[str, list[float]] = {"replicas": [], "one": []}
    num_tokens = 64
    with serving(model, "--replicas", "2") as replicas, serving(model) as one:
        for number in range(rounds + 1):
            for name, server in (("replicas", replicas), ("one", one))[:: 1 if number % 2 else -1]:
                places = [server.place] * THROUGHPUT_CLIENTS
                count, took_s, _ = asyncio.run(clients(places, seconds, lambda: completion(fresh_prompt(), num_tokens)))
                if number:  # the first round warms up
                    found[name].append(count * num_tokens / took_s)
    ratios = [many / single for many, single in zip(found["replicas"], found["one"], strict=True)]
    rates = {name: statistics.median(values) for name, values in found.items()}
    return {"tokens_per_s": rates, "ratio": statistics.median(ratios), "ratios": ratios}


def added(server: Server, num_clients: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of requests through the proxy and to the replicas, what the proxy adds, and what it computes."""
    through = [server.place] * num_clients
    direct = [server.sockets[i % 2] for i in range(num_clients)]
    front = psutil.Process(server.process.pid)
    report = {}
    for kind, more in (("whole", {}), ("stream", {"stream": True})):
        times: dict[str, list[float]] = {"proxy": [], "direct": []}
        computed_s = 0.0
        for number in range(rounds + 1):
            for name, places in (("proxy", through), ("direct", direct))[:: 1 if number % 2 else -1]:
                body = lambda more=more: completion(fresh_prompt(), 8, **more)  # noqa: E731
                before_s = cpu_s(front)
                _, _, took = asyncio.run(clients(places, seconds, body))
                times[name] += took if number else []
                computed_s += cpu_s(front) - before_s if number and name == "proxy" else 0.0
        points = {
            name: {"p50_ms": statistics.median(took) * 1e3, "p99_ms": statistics.quantiles(took, n=100)[98] * 1e3}
            for name, took in times.items()
        }
        difference = {key: points["proxy"][key] - points["direct"][key] for key in points["proxy"]}
        report[kind] = {
            **points,
            "added": difference,
            "requests": {name: len(took) for name, took in times.items()},
            "computed_ms": computed_s / len(times["proxy"]) * 1e3,
        }
    return report


def cpu_s(process: psutil.Process) -> float:
    """Return the processor time of a process so far."""
    spent = process.cpu_times()
    return spent.user + spent.system


def conversations(num: int, turns: int, seed: int) -> list[str]:
    """Prompts in a random order, those of each conversation in their own."""
    chosen = random.Random(seed)
    instructions = [" ".join(chosen.choice(_WORDS) for _ in range(100)) for _ in range(4)]
    texts = [f"{seed} {instructions[i % 4]}\nConversation {i}:" for i in range(num)]
    order = [i for i in range(num) for _ in range(turns)]
    chosen.shuffle(order)
    prompts = []
    for i in order:
        texts[i] += "\n" + " ".join(chosen.choice(_WORDS) for _ in range(20))
        prompts.append(texts[i])
    return prompts


async def hits(server: Server, places: Sequence[Place], prompts: Sequence[str]) -> float:
    """Return which share of the prompts' tokens was found, with four requests at a time."""
    asking = Connection(server.place)
    before = await counters(asking)
    waiting = iter(list(enumerate(prompts)))

    async def client() -> None:
        connections = [Connection(place) for place in places]
        for number, prompt in waiting:
            await connections[number % len(places)].ask("/v1/completions", completion(prompt, 2))
        for connection in connections:
            connection.close()

    await asyncio.gather(*(client() for _ in range(4)))
    after = await counters(asking)
    asking.close()
    return (after["hits"] - before["hits"]) / (after["queries"] - before["queries"])


async def counters(asking: Connection) -> dict[str, float]:
    _, page, _ = await asking.ask("/metrics")
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            for name in ("hits", "queries"):
                found[name] += sample.value * (sample.name == f"whet:prefix_cache_{name}_total")
    return found


def prefix_hits(server: Server, rounds: int) -> dict[str, Any]:
    """Return the hit rates of the proxy and of replicas in turn, each on conversations that it has not seen."""
    found: dict[str, list[float]] = {"proxy": [], "round_robin": []}
    for number in range(rounds):
        for name, places in (("proxy", [server.place]), ("round_robin", server.sockets)):
            prompts = conversations(24, 6, seed=2 * number + (name == "proxy"))
            found[name].append(asyncio.run(hits(server, places, prompts)))
    return {name: statistics.median(values) for name, values in found.items()}


def answered(server: Server, num_requests: int, rate: float) -> dict[str, Any]:
    """Send requests at a steady rate, half of them streams, with a kill and an update. Return how many ended how."""
    victim = server.replicas[0].pid
    events: list[tuple[int, Callable[[], None]]] = [
        (num_requests // 3, lambda: os.kill(victim, signal.SIGKILL)),
        (2 * num_requests // 3, lambda: server.process.send_signal(signal.SIGHUP)),
    ]
    before = {child.pid for child in server.replicas}
    ended = asyncio.run(_steady(server.place, num_requests, rate, events))
    ends_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < ends_s and (before & {c.pid for c in server.replicas} or len(server.replicas) != 2):
        time.sleep(0.2)
    return {"requests": num_requests, "per_second": rate, "ended": dict(Counter(ended))}


async def _steady(
    place: Place, num_requests: int, rate: float, events: list[tuple[int, Callable[[], None]]]
) -> list[str]:
    began_s, waiting = time.perf_counter(), list[Awaitable[str]]()
    for number in range(num_requests):
        while events and number >= events[0][0]:
            events.pop(0)[1]()
        await asyncio.sleep(max(0.0, began_s + number / rate - time.perf_counter()))
        waiting.append(asyncio.ensure_future(_one(place, number)))
    return list(await asyncio.gather(*waiting))


async def _one(place: Place, number: int) -> str:
    connection = Connection(place)
    body = completion(fresh_prompt(), 16, stream=number % 2 == 0)
    try:
        status, content, _ = await asyncio.wait_for(connection.ask("/v1/completions", body), _LIMIT_S)
    except (OSError, EOFError, TimeoutError) as error:
        return f"lost: {type(error).__name__}"
    finally:
        with suppress(RuntimeError):
            connection.close()
    if status != 200:
        return f"refused: {status}"
    return "error in a stream that had begun" if b'"error"' in content else "answered"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="docs-gpt", help="as for whet serve")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second at which a replica is killed")
    parser.add_argument("--try", dest="is_trial", action="store_true", help="measure whatever else runs; write nothing")
    options = parser.parse_args()
    with nullcontext() if options.is_trial else quiet_machine():
        rates = throughput(options.model, options.rounds, options.seconds)
        with serving(options.model, "--replicas", "2") as server:
            proxy = {str(number): added(server, number, options.rounds, options.seconds) for number in CLIENTS}
            found = prefix_hits(server, options.rounds)
            counted = answered(server, options.requests, options.rate)
    given = f"--model {options.model} --rounds {options.rounds} --seconds {options.seconds:g}"
    report = {
        **circumstances(f"python benchmarks/serve_replicas.py {given} --requests {options.requests}"),
        "model": options.model,
        "clients": THROUGHPUT_CLIENTS,
        "target_ms": TARGET_MS,
        "throughput": rates,
        "proxy": proxy,
        "prefix_hits": found,
        "answered": counted,
    }
    print(json.dumps({key: report[key] for key in ("throughput", "proxy", "prefix_hits", "answered")}, indent=2))
    if not options.is_trial:
        write_whole(RESULT, json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
