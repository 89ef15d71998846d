"""What Ray Serve costs beside a server in one process, and what becomes of requests while parts of it are taken away.

    python benchmarks/serve_ray.py [--requests 1000] [--rate 10] [--calls 400] [--tokens 8] [--try]

Two Ray nodes run on this machine. docs-gpt is served three times: by `whet serve` in one process, by `whet serve --ray`
with one replica, whose own server asks it by Ray's handle, and by the same replica behind Ray's own HTTP proxy. Each is
asked for one token by 1 and by 16 clients (p50 and p99 of the whole answer), and for streams by 1 client: how much
later each token after the first arrives than the one before.

Then two replicas answer 1,000 requests at a steady rate, without a second try for any: after 15 % a replica is killed
(-9), after 45 % a node, and after 75 % all replicas are replaced (SIGHUP). --try runs on a busy machine too and writes
nothing.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2 as httpx
from circumstances import circumstances
from quietly import quiet_machine
from ray_scenario import (
    MODEL,
    all_replicas,
    bodies,
    expected_texts,
    points_ms,
    replicas_of,
    serving,
    steady,
    tallied,
    two_nodes,
)

from whet.files import write_whole

RESULT = Path(__file__).parents[1] / "docs" / "results" / "serve_ray.json"
CLIENTS = (1, 16)
_STREAM_TOKENS = 64
_CPUS = 2


async def latencies(url: str, clients: int, calls: int) -> dict[str, float]:
    """p50 and p99 of one-token answers, in ms, with so many clients at once."""
    body = {"model": MODEL, "prompt": "The three rules are", "max_tokens": 1, "temperature": 0}
    took: list[float] = []

    async def client(http: httpx.AsyncClient) -> None:
        for number in range(calls // clients + 5):
            began_s = time.perf_counter()
            answer = await http.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            if number >= 5:  # the first ones open connections
                took.append(time.perf_counter() - began_s)

    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
    return points_ms(took)


async def token_gap_ms(url: str, streams: int) -> float:
    """The median time from one event of a stream to the next, in ms."""
    body = {"model": MODEL, "prompt": "The", "max_tokens": _STREAM_TOKENS, "ignore_eos": True, "stream": True}
    gaps: list[float] = []
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        for _ in range(streams):
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                came = [time.perf_counter() async for line in answer.aiter_lines() if line]
            gaps += [after - before for before, after in itertools.pairwise(came)]
    return statistics.median(gaps) * 1e3


async def costs(url: str, calls: int) -> dict[str, Any]:
    streams = max(1, calls // 40)
    return {
        **{f"clients_{count}": await latencies(url, count, calls) for count in CLIENTS},
        "token_gap_ms": await token_gap_ms(url, streams),
    }


@contextmanager
def behind_rays_proxy(address: str) -> Iterator[str]:
    """The same replica behind Ray's own HTTP proxy; its address."""
    import ray
    from ray import serve

    from whet.server.http.settings import Settings
    from whet.server.opening import Given
    from whet.server.options import EngineOptions
    from whet.server.ray_serve.replica import Asked, Replica

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    port = 18_431
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    settings = Settings(served_names=(MODEL,))
    given = Given(EngineOptions(dtype="fp32"))
    asked = Asked(model=MODEL, models={}, given=given, settings=settings, threads=1, generation="proxy")
    deployment = serve.deployment(serve.ingress()(Replica), name="whet", max_ongoing_requests=64)
    serve.run(deployment.bind(asked), name="proxied", route_prefix="/")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def overheads(address: str, calls: int) -> dict[str, Any]:
    """The costs of each way to serve one model with one thread."""
    one = ["--replicas", "1", "--ray-cpus", "1", "--dtype", "fp32"]
    found: dict[str, Any] = {}
    with serving("--dtype", "fp32", threads=1) as (url, _):
        found["whet serve"] = asyncio.run(costs(url, calls))
    with serving("--ray", address, *one) as (url, _):
        found["whet serve --ray"] = asyncio.run(costs(url, calls))
    with behind_rays_proxy(address) as url:
        found["Ray's HTTP proxy"] = asyncio.run(costs(url, calls))
    return found


def scenario(cluster: Any, num: int, rate: float, tokens: int) -> dict[str, Any]:
    """1,000 requests at a steady rate while a replica, a node and then all replicas are taken away."""
    [away] = cluster.worker_nodes
    options = ["--ray", cluster.address, "--replicas", "2", "--ray-cpus", "1", "--dtype", "fp32"]
    with serving(*options, "--shutdown-timeout", "60s") as (url, process):
        texts = asyncio.run(expected_texts(url, tokens))

        def update() -> None:
            while len(all_replicas(cluster)) < 2:
                time.sleep(0.5)
            process.send_signal(signal.SIGHUP)

        events: dict[int, Callable[[], None]] = {
            num * 15 // 100: lambda: os.kill(replicas_of(cluster.head_node)[0].pid, signal.SIGKILL),
            num * 45 // 100: lambda: cluster.remove_node(away, allow_graceful=False),
            num * 75 // 100: update,
        }
        outcomes = asyncio.run(steady(url, bodies(num, tokens), rate, texts, events))
        counted = httpx.get(f"{url}/metrics", trust_env=False).text
    retries = [line.split()[-1] for line in counted.splitlines() if line.startswith("whet:ray_retries_total")]
    return {"rate_per_s": rate, "tokens": tokens, **tallied(outcomes), "asked_again": int(float(retries[0]))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--try", action="store_true", dest="is_trial")
    given = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(nullcontext() if given.is_trial else quiet_machine(follows=True))
        cluster = stack.enter_context(two_nodes(_CPUS))
        measured = {"costs": overheads(cluster.address, given.calls)}
        measured["lost"] = scenario(cluster, given.requests, given.rate, given.tokens)
    command = "python benchmarks/serve_ray.py"
    report = {**circumstances(command, {"ray": version("ray")}), **measured}
    print(json.dumps(measured, indent=1))
    if not given.is_trial:
        write_whole(RESULT, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
