"""`whet serve --replicas` as a user starts it, and a steady load on it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil


@dataclass
class Served:
    """A server with replicas. `said` has the lines that it wrote to standard error."""

    process: subprocess.Popen[str]
    url: str
    told: dict[str, Any]
    said: list[str] = field(default_factory=list)

    def ask(self, path: str, body: object = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def wait_said(self, words: str, count: int = 1, limit_s: float = 120.0) -> None:
        wait_for(lambda: sum(words in line for line in self.said) >= count, limit_s)

    @property
    def pids(self) -> list[int]:
        """The replicas that run now."""
        return [one.pid for one in psutil.Process(self.process.pid).children()]


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_s, "waited in vain"
        time.sleep(0.02)


@contextmanager
def served(*words: str, **variables: str) -> Iterator[Served]:
    """Yield a server with the words of `whet serve`, and kill it afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "whet", "serve", *words, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )
    assert process.stdout is not None
    said: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        said.extend(map(str.rstrip, process.stderr))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        line = process.stdout.readline()
        assert line, "\n".join(said)
        told = json.loads(line)
        yield Served(process, told["url"], told, said)
    finally:
        process.kill()
        process.wait()
        reading.join(10)
        process.stdout.close()
        assert process.stderr is not None
        process.stderr.close()


@dataclass
class Load:
    """Requests at a steady rate, half of them streams, and what came of each."""

    server: Served
    num_requests: int
    rate: float
    max_tokens: int = 16
    answers: list[str] = field(default_factory=list)

    def run(self, at: Sequence[tuple[float, Callable[[], None]]] = ()) -> dict[str, int]:
        """Send all, and call the functions of `at` at their shares of the requests. Return how many ended how."""
        events = list(at)
        began_s = time.monotonic()
        with ThreadPoolExecutor(64) as pool:
            waiting = []
            for i in range(self.num_requests):
                while events and i >= events[0][0] * self.num_requests:
                    events.pop(0)[1]()
                time.sleep(max(0.0, began_s + i / self.rate - time.monotonic()))
                waiting.append(pool.submit(self.one, i))
            self.answers = [one.result() for one in waiting]
        return {answer: self.answers.count(answer) for answer in set(self.answers)}

    def one(self, i: int) -> str:
        body = {"prompt": f"{i % 7} things about", "max_tokens": self.max_tokens, "ignore_eos": True, "temperature": 0}
        try:
            if i % 2:
                answer = self.server.ask("/v1/completions", body)
                return "answered" if answer["usage"]["completion_tokens"] == self.max_tokens else "short"
            return self.stream({**body, "stream": True, "stream_options": {"include_usage": True}})
        except urllib.error.HTTPError as error:
            with error:
                return f"HTTP {error.code}: {error.read()[:200]!r}"
        except OSError as error:
            return f"{type(error).__name__}: {error}"

    def stream(self, body: dict[str, Any]) -> str:
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.server.url}/v1/completions", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            lines = [line.strip().removeprefix(b"data: ") for line in answer if line.strip()]
        if lines[-1:] != [b"[DONE]"]:
            return "no end"
        last = json.loads(lines[-2])
        if "error" in last:
            return f"broken stream: {last['error']['code']}"
        return "answered" if last["usage"]["completion_tokens"] == self.max_tokens else "short"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
