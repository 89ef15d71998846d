"""What forward does beside its operators: each effect is found by its name, and harmless things are left alone."""

import datetime
import gc
import itertools
import logging
import os
import random
import re
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from whet.measure.effects import find_effects

COUNT = 0
CALLS: list[int] = []
TABLE = {"a": torch.ones(3)}
LOG = logging.getLogger("effects")

Forward = Callable[["Model", Tensor], Any]


class Model(nn.Module):
    calls_of_all = 0

    def __init__(self, forward: Forward, path: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.function = forward
        self.file = path.open("a")
        self.path = path
        self.cache: dict[int, Tensor] = {}
        self.num_calls = 0
        self.generator = random.Random(1)
        self.numbers = np.random.default_rng(1)
        self.noise = torch.Generator().manual_seed(1)
        self.ids = itertools.count()
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.function(self, x)
        return self.linear(x)


def effects_of(forward: Forward, path: Path) -> str:
    """All effects of a model that has been called before, as one line."""
    model, x = Model(forward, path).eval(), torch.randn(2, 4)
    with torch.no_grad(), model.file:
        model(x)
        return "; ".join(map(str, find_effects(model, lambda: model(x), lambda: model(-x))))


def add_to_global(model: Model, x: Tensor) -> None:
    global COUNT
    COUNT += 1


def connect(model: Model, x: Tensor) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.connect_ex("/nowhere")


def change_class(model: Model, x: Tensor) -> None:
    Model.calls_of_all += 1


def setter(name: str, value: Callable[[Model, Tensor], Any]) -> Forward:
    return lambda model, x: setattr(model, name, value(model, x))


def closed_over() -> Forward:
    count = 0

    def forward(model: Model, x: Tensor) -> None:
        nonlocal count
        count += 1

    return forward


def closed_over_list() -> Forward:
    seen: list[Any] = []
    return lambda model, x: seen.append(x.shape)


@pytest.mark.parametrize(
    ("forward", "named"),
    [
        (lambda m, x: print("a call"), r"prints in .*test_effects.py:\d+ \(<lambda>\)"),
        (lambda m, x: sys.stderr.write("a call\n"), "prints"),
        (lambda m, x: LOG.warning("a call"), "writes a log"),
        (lambda m, x: time.sleep(0.001), r"waits \(time.sleep\)"),
        (lambda m, x: time.perf_counter(), r"reads the clock \(time.perf_counter\)"),
        (lambda m, x: datetime.datetime.now(), r"reads the clock \(datetime.now\)"),
        (lambda m, x: random.random(), r"draws Python's random numbers \(Random.random\)"),
        (lambda m, x: random.seed(3), r"draws Python's random numbers \(Random.seed\)"),
        (lambda m, x: m.generator.random(), "draws Python's random numbers"),
        (lambda m, x: np.random.rand(), "draws NumPy's random numbers"),
        (lambda m, x: np.random.seed(3), "draws NumPy's random numbers"),
        (lambda m, x: m.numbers.normal(), r"changes state .*\(numbers\)"),
        (lambda m, x: torch.rand(2, generator=m.noise), r"changes state .*\(noise\)"),
        (lambda m, x: os.urandom(4), "random numbers of the system"),
        (lambda m, x: m.path.read_text(), "opens a file"),
        (lambda m, x: m.file.write("a call"), "writes a file"),
        (lambda m, x: torch.save(x, m.path.with_suffix(".pt")), r"writes a file \(torch.save\)"),
        (lambda m, x: np.save(m.path.with_suffix(".npy"), x.numpy()), r"opens a file .*test_effects.py"),
        (connect, "uses the network"),
        (lambda m, x: subprocess.run(["true"], check=True), "starts a process"),
        (setter("num_calls", lambda m, x: m.num_calls + 1), r"changes state that the next call finds \(num_calls\)"),
        (lambda m, x: m.seen.add_(1), r"\(seen\)"),
        (lambda m, x: next(m.ids), r"\(ids\)"),
        (lambda m, x: m.cache.update({len(m.cache): x}), r"\(cache\)"),
        (change_class, r"\(Model.calls_of_all\)"),
        (add_to_global, r"COUNT"),
        (lambda m, x: CALLS.append(1), r"CALLS"),
        (closed_over(), "count of forward"),
        (closed_over_list(), "seen of <lambda>"),
    ],
)  # fmt: skip
def test_is_found_by_name(forward: Forward, named: str, tmp_path: Path) -> None:
    assert re.search(named, effects_of(forward, tmp_path / "file"))


def fill_cache(model: Model, x: Tensor) -> None:
    if x.shape[0] not in model.cache:
        print("the first call")
        model.cache[x.shape[0]] = torch.ones(x.shape[0])


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: None,
        fill_cache,
        setter("last", lambda m, x: x.sum()),
        setter("last", lambda m, x: tuple(x.shape)),
        lambda m, x: LOG.debug("a call"),
        lambda m, x: warnings.warn("be careful", stacklevel=1),
        lambda m, x: TABLE["a"] + 1,
        lambda m, x: torch.rand(3),  # a graph that depends on it is refused; see probes
        lambda m, x: nn.functional.dropout(x, 0.5, False),
        lambda m, x: [x + i for i in range(30)],
        lambda m, x: sorted([3, 1, 2], key=lambda i: -i),
        lambda m, x: repr(m.linear),
    ],
)
@pytest.mark.filterwarnings("default:be careful")
def test_is_harmless(forward: Forward, tmp_path: Path) -> None:
    assert effects_of(forward, tmp_path / "file") == ""


def test_time_outside_operators(tmp_path: Path) -> None:
    """A tenth of a second of Python beside microseconds of operators."""
    found = effects_of(lambda m, x: sum(range(3_000_000)), tmp_path / "file")
    assert found.startswith("spends ")
    assert found.endswith("ms outside operators, most of it in sum")


def test_a_garbage_collection_during_forward_is_not_the_models(tmp_path: Path) -> None:
    """Other libraries are told of collections, and what they do then is none of forward's doing."""

    def on_collection(phase: str, info: dict[str, int]) -> None:
        CALLS.append(len(phase))
        time.perf_counter()

    thresholds = gc.get_threshold()
    gc.callbacks.append(on_collection)
    gc.set_threshold(1)
    try:
        assert effects_of(lambda m, x: [[] for _ in range(len(CALLS) % 2 + 100)], tmp_path / "file") == ""
    finally:
        gc.callbacks.remove(on_collection)
        gc.set_threshold(*thresholds)


def test_random_numbers_are_left_as_they_were(tmp_path: Path) -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()
    random.seed(5)
    np.random.seed(5)
    effects_of(lambda m, x: None, tmp_path / "file")
    assert (random.random(), np.random.rand()) == expected


def test_another_profile_function_is_put_back(tmp_path: Path) -> None:
    def mine(*event: Any) -> None: ...

    sys.setprofile(mine)
    try:
        effects_of(lambda m, x: None, tmp_path / "file")
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
