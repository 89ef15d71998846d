"""How long a running stream stands still because of another client's request, however large that is.

Starts `whet serve`, reads streams one after another in this process, and has another process send what is large or
strange. Prints the longest time between two chunks of a stream in each case, and the server's memory afterwards.

    python benchmarks/stall.py [--json FILE]

The target: a request of any size adds at most 50 ms to the longest gap, beside one step. Run it on a quiet machine.
"""

import argparse
import http.client
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

TARGET_MS = 50.0
_MIB = 2**20
_LEAST_S = 3.0  # for which each case is watched
_STREAM = {"prompt": "A class definition", "max_tokens": 480, "stream": True, "ignore_eos": True, "temperature": 0}

Case = Callable[[], list[tuple[str, bytes]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="docs-gpt", help="as for whet serve")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    rows = []
    with serving(options.model) as (address, pid):
        watch(address, None)  # the first requests compile and warm up
        memory = [resident(pid)]
        for name, case in CASES.items():
            quiet_ms, _ = watch(address, None)
            busy_ms, statuses = watch(address, case)
            memory.append(resident(pid))
            rows.append(
                {"case": name, "quiet_ms": quiet_ms, "busy_ms": busy_ms, "statuses": statuses, "memory": memory[-1]}
            )
            print(
                f"{name:<44} longest gap {busy_ms:7.1f} ms (without: {quiet_ms:6.1f})  "
                f"answers {statuses}  memory {memory[-1] // _MIB} MiB",
                flush=True,
            )
    worst = max(row["busy_ms"] - row["quiet_ms"] for row in rows)
    print(f"longest stall beyond the quiet gap: {worst:.1f} ms (target {TARGET_MS:g})")
    print(f"memory at first {memory[0] // _MIB} MiB, at last {memory[-1] // _MIB} MiB")
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows, "worst_ms": worst, "memory_at_first": memory[0]}, indent=2))


def completion(**fields: Any) -> list[tuple[str, bytes]]:
    return [("/v1/completions", json.dumps({"max_tokens": 4, **fields}).encode())]


def chat(messages: list[dict[str, str]]) -> list[tuple[str, bytes]]:
    return [("/v1/chat/completions", json.dumps({"max_tokens": 4, "messages": messages}).encode())]


CASES: dict[str, Case] = {
    "a prompt of 8 MB": lambda: completion(prompt="the word " * 880_000),
    "six prompts of 2 MB at once": lambda: completion(prompt="the word " * 230_000) * 6,
    "a prompt of 47 kB, which might fit": lambda: completion(prompt="-" * 47_000) * 6,
    "a prompt of 8 MB without a space": lambda: completion(prompt="x" * 8_000_000),
    "8 MB of token ids": lambda: completion(prompt=[1] * 2_600_000),
    "8 MB of texts of one letter": lambda: completion(prompt=["a"] * 1_600_000),
    "8 MB of other JSON": lambda: completion(prompt="a", other=[{}] * 2_000_000),
    "8 MB of nested JSON": lambda: [("/v1/completions", b"[" * 8_000_000)],
    "8 MB of escapes": lambda: completion(prompt="\u1234" * 1_300_000),
    "8 MB that are no JSON": lambda: [("/v1/completions", b'{"prompt": "' + b"\xff" * 8_000_000)],
    "a conversation of 16,000 messages": lambda: chat([{"role": "user", "content": "a"}] * 16_000),
    "a message of 8 MB": lambda: chat([{"role": "user", "content": "a b " * 2_000_000}]),
    "/tokenize with 8 MB": lambda: [("/tokenize", json.dumps({"prompt": "a b " * 2_000_000}).encode())],
    "/tokenize with 60 kB, six at once": lambda: (
        [("/tokenize", json.dumps({"prompt": "a b " * 15_000, "return_token_strs": True}).encode())] * 6
    ),
    "/detokenize with 8 MB": lambda: [("/detokenize", json.dumps({"tokens": [1] * 2_600_000}).encode())],
    "60 kB of JSON, two hundred times": lambda: completion(prompt="a", other=[[]] * 15_000) * 200,
    "echo with 20 logprobs, 64 choices": lambda: completion(
        prompt="the word " * 100, echo=True, logprobs=20, n=64, max_tokens=2
    ),
}


@contextmanager
def serving(model: str) -> Iterator[tuple[tuple[str, int], int]]:
    """A server in a process of its own: its address, and its process id."""
    command = [sys.executable, "-m", "whet", "serve", model, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            host, _, port = said["url"].removeprefix("http://").rpartition(":")
            yield (host, int(port)), process.pid
        finally:
            process.terminate()


def watch(address: tuple[str, int], case: Case | None) -> tuple[float, list[int]]:
    """The longest gap of streams in milliseconds while another process sends the case, and what it was answered."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    name = next((name for name, one in CASES.items() if one is case), None)
    other = context.Process(target=send, args=(address, name, sender))
    other.start()
    receiver.recv()  # it has made what it sends
    longest_s, began = 0.0, time.monotonic()
    while other.is_alive() or time.monotonic() - began < _LEAST_S:
        longest_s = max(longest_s, longest_gap(address))
    statuses = receiver.recv()
    other.join()
    return longest_s * 1e3, statuses


def send(address: tuple[str, int], name: str | None, sender: Any) -> None:
    """In another process: send a case's requests, all at once, half a second after the streams have begun."""
    requests = CASES[name]() if name is not None else []
    sender.send(None)
    time.sleep(0.5)
    with ThreadPoolExecutor(32) as threads:
        statuses = list(threads.map(lambda request: post(address, *request), requests))
    sender.send(sorted(set(statuses)))


def post(address: tuple[str, int], path: str, content: bytes) -> int:
    connection = http.client.HTTPConnection(*address, timeout=300)
    try:
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def longest_gap(address: tuple[str, int]) -> float:
    """Read one stream; the longest time between two of its lines, in seconds."""
    connection = http.client.HTTPConnection(*address, timeout=300)
    connection.request("POST", "/v1/completions", json.dumps(_STREAM), {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.readline()
    longest, last = 0.0, time.monotonic()
    while response.readline():
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    connection.close()
    return longest


def resident(pid: int) -> int:
    """Bytes of memory of a process and of those that it started."""
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


if __name__ == "__main__":
    main()
