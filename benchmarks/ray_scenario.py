"""Two Ray nodes on this machine, whet serve on them, and requests at a steady rate while parts of it are taken away."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import httpx2 as httpx
import psutil

# Ray reads these as it is imported; child processes inherit them. All its ports then need the token.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a node gives its agents 15 s, too few to compile what they import

from ray.cluster_utils import Cluster

from whet.measure.stats import percentile
from whet.ui.network import LOOPBACK, bind

MODEL = "docs-gpt"
_SILENCE_S = 180.0  # a request without an answer for so long is lost
_END_S = 90.0
_QUESTIONS = ("The three rules are", "A river begins", "Whoever reads this", "In the year")


@dataclass(frozen=True)
class Outcome:
    """What became of one request.

    kind: "answered" as expected; "cut" in a stream with a clear error; "other" for all else, which `detail` describes.
    """

    kind: str
    took_s: float
    detail: str = ""


@contextmanager
def two_nodes(cpus_each: int) -> Iterator[Cluster]:
    """Two Ray nodes on this machine, whose ports need a token. They have no dashboard, and small agents."""
    cluster = Cluster()
    try:
        add_node(cluster, cpus_each, include_dashboard=False)
        add_node(cluster, cpus_each)
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Cluster, cpus: int, **more: Any) -> None:
    """Add a node with ports of its own. Otherwise, a node waits at most 15 s for its agents to choose theirs."""
    names = [f"{name}_port" for name in ("metrics_agent", "runtime_env_agent", "metrics_export")]
    names.append("dashboard_agent_listen_port")
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    with mock.patch("ray._private.utils.get_dashboard_dependency_error", return_value=ImportError("left out")):
        cluster.add_node(num_cpus=cpus, **ports, **more)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(bind(LOOPBACK, 0)) for _ in range(count)]
        return [one.getsockname()[1] for one in found]


@contextmanager
def serving(
    *options: str, model: str = MODEL, threads: int | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """whet serve in a process of its own: its address and the process."""
    environment = os.environ if threads is None else os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "whet", "serve", model, "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"whet serve did not start: {process.stderr.read()}")
        yield json.loads(line)["url"], process
        process.send_signal(signal.SIGTERM)
        process.wait(_END_S)
    finally:
        process.kill()
        process.communicate()


def replicas_of(node: Any) -> list[psutil.Process]:
    """The processes of the replicas on a node, the oldest first."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    found = []
    for one in raylet.children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if "ServeReplica" in " ".join(one.cmdline()):
                found.append((one.create_time(), one.pid, one))
    return [process for *_, process in sorted(found)]


def all_replicas(cluster: Cluster) -> list[psutil.Process]:
    return [process for node in cluster.list_all_nodes() for process in replicas_of(node)]


def bodies(num: int, num_tokens: int) -> list[dict[str, Any]]:
    """Requests, every other one of them for a stream."""
    return [
        {
            "model": MODEL,
            "prompt": _QUESTIONS[number % len(_QUESTIONS)],
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": bool(number % 2),
        }
        for number in range(num)
    ]


async def expected_texts(url: str, num_tokens: int) -> dict[str, str]:
    """What the model says to each question, from a server that nothing happens to."""
    async with httpx.AsyncClient(base_url=url, timeout=_SILENCE_S, trust_env=False) as client:
        found = {}
        for body in bodies(len(_QUESTIONS), num_tokens):
            answer = await client.post("/v1/completions", json={**body, "stream": False})
            found[body["prompt"]] = answer.json()["choices"][0]["text"]
        return found


async def steady(
    url: str,
    requests: Sequence[dict[str, Any]],
    per_s: float,
    texts: Mapping[str, str],
    events: Mapping[int, Callable[[], None]],
) -> list[Outcome]:
    """Send requests at a steady rate, without a second try for any, and return what became of each.

    texts: the right answer to each prompt.
    events: what happens, in a thread, when the request of this number is sent.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
    happening = []
    async with httpx.AsyncClient(base_url=url, timeout=_SILENCE_S, trust_env=False, limits=limits) as client:
        asked = []
        began_s = time.monotonic()
        for number, body in enumerate(requests):
            await asyncio.sleep(began_s + number / per_s - time.monotonic())
            if number in events:
                happening.append(asyncio.create_task(asyncio.to_thread(events[number])))
            asked.append(asyncio.create_task(_outcome(client, body, texts[body["prompt"]])))
        found = await asyncio.gather(*asked)
        await asyncio.gather(*happening)
    return found


async def _outcome(client: httpx.AsyncClient, body: dict[str, Any], expected: str) -> Outcome:
    began_s = time.monotonic()

    def ended(kind: str, detail: str = "") -> Outcome:
        return Outcome(kind, time.monotonic() - began_s, detail)

    try:
        answer = await client.post("/v1/completions", json=body)
    except httpx.HTTPError as error:
        return ended("other", f"{type(error).__name__}: {error}")
    if answer.status_code != 200:
        return ended("other", f"{answer.status_code}: {answer.text[:200]}")
    if not body["stream"]:
        text = answer.json()["choices"][0]["text"]
        return ended("answered") if text == expected else ended("other", f"another answer: {text!r}")
    events = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    if events[-1:] != ["[DONE]"]:
        return ended("other", "the stream has no end")
    read = [json.loads(event) for event in events[:-1]]
    for event in read:
        if "error" in event:
            return ended("cut", event["error"]["message"])
    text = "".join(choice["text"] for event in read for choice in event["choices"])
    return ended("answered") if text == expected else ended("other", f"another stream: {text!r}")


def tallied(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Count the outcomes, and keep what went wrong in words."""
    took = [one.took_s for one in outcomes]
    return {
        "requests": len(outcomes),
        **{kind: sum(one.kind == kind for one in outcomes) for kind in ("answered", "cut", "other")},
        "slowest_s": max(took),
        **points_ms(took),
        "details": sorted({one.detail for one in outcomes if one.detail}),
    }


def points_ms(times_s: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile of times in seconds, in milliseconds."""
    return {f"p{percent}_ms": percentile(times_s, percent) * 1e3 for percent in (50, 99)}
