"""What every test runs under: one thread that sleeps while it waits, a fixed seed, no deadline on single examples."""

import gc
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported, and handed on to child processes. Threads that spin while they wait make two processes on
# one machine many times slower than one after the other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

os.environ.pop("COLUMNS", None)  # the width of whoever's terminal the tests are run in

# The tests run beside each other, so the machine is always busy. They pretend a quiet one, here and in child processes,
# and say where they pretend another load.
os.environ.setdefault("WHET_PRETENDED_LOAD", "0")

import pytest
import torch
from hypothesis import settings

import forked_children
import second_tier

# Nothing that is imported or collected goes away: walking it again and again takes a part of the time of all tests.
gc.disable()

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would every child.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("whet", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("whet")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as thorough what takes long, and the tests that take a browser: each starts one, and a server for its pages.

    tests/second_tier.py writes the list of what takes long.
    """
    long = set(second_tier.LIST.read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.nodeid in long or "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.thorough)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `-m gpu`, import the files alone that have such tests: others may need packages that are not there."""
    if config.option.markexpr != "gpu" or not collection_path.name.startswith("test_"):
        return None
    return True if "mark.gpu" not in collection_path.read_text(encoding="utf-8") else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked gpu where there is no GPU, unless it takes a fixture for which the CPU can stand in."""
    if item.get_closest_marker("gpu") is None or {"gpu", "device"} & set(getattr(item, "fixturenames", ())):
        return
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and nothing can stand in for it")


@pytest.fixture(scope="session")
def children_server() -> Iterator[None]:
    """Run the process whose forks whet's child processes are, where a test asks for that."""
    with forked_children.server():
        yield


@pytest.fixture
def forked(children_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whet's child processes be forks. For tests that are not about how processes start, or about their memory."""
    forked_children.use(monkeypatch, timed_s=math.inf)


@pytest.fixture
def short_children(children_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whet's child processes be forks that measure shortly. For tests in which the figures do not matter."""
    forked_children.use(monkeypatch)


@pytest.fixture
def gpu() -> str:
    """The device of tests that are marked gpu: "cuda", or what WHET_GPU_STANDIN names to check their own logic."""
    if stand_in := os.environ.get("WHET_GPU_STANDIN"):
        return stand_in
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device that torch can use")
    return "cuda"
