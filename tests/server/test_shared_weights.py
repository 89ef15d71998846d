"""Weights that processes share: the same bytes as private ones, packed once, and packed anew when anything changed."""

import errno
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from families_served import logits_after
from sharing_child import generated
from torch import Tensor
from written_models import MODELS, write_model

from whet.kernels.build import Isa, library, supported
from whet.kernels.linear.packed import PackedWeights
from whet.models.families import open_model, open_with, outline_of
from whet.models.options import ServingOptions
from whet.models.shared_weights import identity
from whet.models.step import ServedModel
from whet.server.engine import Engine
from whet.server.footprint import footprint
from whet.server.options import EngineOptions

CHILD = Path(__file__).with_name("sharing_child.py")
IDS = [3, 14, 15, 92, 65, 35, 89, 79, 32]
LARGE = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 10, "vocab_size": 4000}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    directory = tmp_path / "shared"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes of each matrix whose values are packed from now on."""
    found: list[int] = []
    pack = PackedWeights._pack

    def seen(self: PackedWeights, *given: Any) -> None:
        found.append(self.num_bytes)
        pack(self, *given)

    monkeypatch.setattr(PackedWeights, "_pack", seen)
    return found


def logits(directory: Path, **options: Any) -> Tensor:
    """Return the logits that a model gives after some tokens."""
    return logits_after(lambda: open_model(directory, **options))(IDS)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix == ".weights")


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("options", [{"dtype": "fp32"}, {}, {"weights": "int8"}, {"weights": "int4"}], ids=str)
def test_every_family_gives_the_logits_of_private_weights(
    tmp_path: Path, shared: Path, packed: list[int], model_type: str, options: dict[str, Any]
) -> None:
    directory = write_model(tmp_path / "model", model_type)
    alone = logits(directory, **options)
    assert alone.isfinite().all()
    matrices = packed.copy()
    first = logits(directory, shared_weights=shared, **options)
    assert packed == 2 * matrices
    second = logits(directory, shared_weights=shared, **options)
    assert packed == 2 * matrices  # nothing was packed
    assert torch.equal(first, alone)
    assert torch.equal(second, alone)
    assert len(files(shared)) == 1


@pytest.mark.parametrize("model_type", ["llama", "mamba2", "lfm2", "ltm"])
def test_models_in_torch_share_theirs_too(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    monkeypatch.setenv("WHET_KERNELS", "off")
    library.cache_clear()
    directory = write_model(tmp_path / "model", model_type)
    alone = logits(directory, dtype="fp32")
    for _ in range(2):
        assert torch.equal(logits(directory, dtype="fp32", shared_weights=shared), alone)
    assert len(files(shared)) == 1
    library.cache_clear()


def test_the_file_holds_what_was_counted_and_is_mapped_read_only(tmp_path: Path, shared: Path) -> None:
    directory = write_model(tmp_path / "model", "llama")
    options = ServingOptions(shared_weights=shared)
    kept = [open_model(directory, shared_weights=shared) for _ in range(2)]
    outline = outline_of(directory, options)
    assert outline.vocab_size == 97
    [name] = files(shared)
    size = (shared / name).stat().st_size
    assert outline.weight_bytes <= size < outline.weight_bytes + 4096
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in lines if name in line] == ["r--s", "r--s"]
    assert [model.weight_bytes for model in kept] == [open_model(directory).weight_bytes] * 2
    assert [path.name for path in shared.iterdir() if path.name.startswith(".")] == []


def test_what_a_memory_is_of_is_known_without_reading_weights(tmp_path: Path, shared: Path) -> None:
    directory = write_model(tmp_path / "model", "ltm")
    alone: Any = open_model(directory)
    for _ in range(2):
        found: Any = open_model(directory, shared_weights=shared)
        assert found.digest == alone.digest


def test_of_several_at_once_one_packs(tmp_path: Path, shared: Path, packed: list[int]) -> None:
    directory = write_model(tmp_path / "model", "llama")
    alone = logits(directory)
    of_model = len(packed)
    barrier = threading.Barrier(4)

    def opened(_: int) -> ServedModel:
        barrier.wait()
        return open_model(directory, shared_weights=shared)

    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(opened, range(4)))
    for model in models:
        assert torch.equal(logits_after(partial(lambda model: model, model))(IDS), alone)
    assert len(packed) == 2 * of_model
    assert len(files(shared)) == 1


def test_a_changed_model_is_packed_anew(tmp_path: Path, shared: Path, packed: list[int]) -> None:
    directory = write_model(tmp_path / "model", "llama")
    before = logits(directory, shared_weights=shared)
    running = logits_after(lambda: open_model(directory, shared_weights=shared))
    old, num_packed = files(shared), len(packed)
    stamp = (directory / "model.safetensors").stat()
    other = write_model(tmp_path / "other", "llama", seed=1)
    (directory / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    os.utime(directory / "model.safetensors", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as rsync -t leaves it
    after = logits(directory, shared_weights=shared)
    assert len(packed) == 2 * num_packed
    assert torch.equal(after, logits(other))
    assert not torch.equal(after, before)
    assert len(files(shared)) == 1
    assert files(shared) != old
    assert torch.equal(running(IDS), before)  # who has the old file keeps it


def test_a_model_that_changes_while_it_is_packed_is_not_shared(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory, other = (
        write_model(tmp_path / name, "llama", seed=seed) for seed, name in enumerate(("model", "other"))
    )
    before, after = logits(directory), logits(other)
    allocate = os.posix_fallocate

    def replaced(*given: int) -> None:
        if (other / "model.safetensors").exists():
            (other / "model.safetensors").replace(directory / "model.safetensors")
        allocate(*given)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "whet.models"):
        patch.setattr(os, "posix_fallocate", replaced)
        assert torch.equal(logits(directory, shared_weights=shared), before)
    assert "the model's files changed while they were read" in caplog.text
    assert files(shared) == []
    for _ in range(2):
        assert torch.equal(logits(directory, shared_weights=shared), after)


def test_another_version_packs_anew(
    tmp_path: Path, shared: Path, packed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_model(tmp_path / "model", "mamba")
    logits(directory, shared_weights=shared)
    num_packed = len(packed)
    monkeypatch.setattr(identity, "__version__", "99.0")
    logits(directory, shared_weights=shared)
    assert len(packed) == 2 * num_packed
    monkeypatch.setattr(identity, "_digest_of_code", lambda: "other code of the same version")
    logits(directory, shared_weights=shared)
    assert len(packed) == 3 * num_packed


def test_other_options_and_instructions_have_files_of_their_own(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_model(tmp_path / "model", "llama")
    for options in ({}, {"weights": "int8"}, {"dtype": "fp32"}, {"max_model_len": 100}):
        assert torch.equal(logits(directory, shared_weights=shared, **options), logits(directory, **options))
    assert len(files(shared)) == 4
    open_model(directory, kv="int8", shared_weights=shared)  # keys and values are no weights
    open_with(directory, EngineOptions(max_num_seqs=3, shared_weights=shared))  # nor are steps
    assert len(files(shared)) == 4
    if len(supported()) > 1:
        monkeypatch.setattr("whet.models.families.library", lambda: library(Isa.PORTABLE))
        open_model(directory, shared_weights=shared)
        assert len(files(shared)) == 5


def test_a_file_that_is_not_whole_is_not_mapped(tmp_path: Path, shared: Path, packed: list[int]) -> None:
    directory = write_model(tmp_path / "model", "llama")
    alone = logits(directory, shared_weights=shared)
    of_model = len(packed)
    [name] = files(shared)
    for time, size in enumerate((0, 1000, (shared / name).stat().st_size - 1), 2):
        os.truncate(shared / name, size)
        assert torch.equal(logits(directory, shared_weights=shared), alone)
        assert len(packed) == time * of_model


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_weights_cannot_be_shared_they_are_private_and_a_line_says_why(
    tmp_path: Path, shared: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_model(tmp_path / "model", "llama")
    alone = logits(directory)

    def check(where: Path, why: str) -> None:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "whet.models"):
            assert torch.equal(logits(directory, shared_weights=where), alone)
        [line] = caplog.messages
        assert "the weights are not shared with other processes, and this one takes memory for its own" in line
        assert why in line
        assert str(where) in line

    check(tmp_path / "nowhere", "No such file or directory")
    check(directory / "config.json", "it is no directory")
    with no_file_beyond(2**20):
        check(shared, "File too large")
    assert list(shared.glob(".*")) == []  # nothing is left half written

    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        check(shared, "No space left on device")
    shared.chmod(0o750)
    check(shared, "other users could change the weights")
    assert files(shared) == []


class Child:
    """A process that opens a model; see sharing_child.py."""

    def __init__(self, directory: Path, shared: Path | None, **asked: Any) -> None:
        options = {"shared_weights": None if shared is None else str(shared), **asked.pop("options", {})}
        given = json.dumps({"directory": str(directory), "options": options, **asked})
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def ask(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("memory\n")
        self.process.stdin.flush()
        return self.line()

    def end(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.mark.thorough
def test_two_processes_hold_one_copy(tmp_path: Path, shared: Path) -> None:
    """Both start at once, so that they also race for who packs."""
    directory = write_model(tmp_path / "model", "llama", **LARGE)
    smaller = write_model(tmp_path / "smaller", "mamba", vocab_size=4000)
    options = {"dtype": "fp32", "memory": 2**23, "max_model_len": 64}
    both = [Child(directory, shared, draft=str(smaller), options=options) for _ in range(2)]
    said = [child.line() for child in both]
    found = [child.ask() for child in both]
    for child in both:
        child.end()
    assert sum(one["num_packed"] for one in said) == 2  # the model and its draft model, each once
    assert [one["rights"] for one in said] == [["r--s", "r--s"]] * 2
    with Engine(directory, EngineOptions(**options), draft=smaller) as alone:
        assert [one["tokens"] for one in said] == [generated(alone)] * 2
    both_outlines = [
        outline_of(one, ServingOptions("fp32", max_model_len=length))
        for one, length in ((directory, 64), (smaller, None))
    ]
    weights_kb = sum(one.weight_bytes for one in both_outlines) // 1024
    assert weights_kb > 100_000
    for one in found:  # each has mapped all, and counts for half of it
        assert one["weights"]["Rss"] > 0.9 * weights_kb
    assert 0.9 * weights_kb < sum(one["weights"]["Pss"] for one in found) <= 1.02 * weights_kb
    assert [one["large_imports"] for one in said] == [[], []]  # they would take 75 MB in each
    needed = footprint(directory, EngineOptions(**options, shared_weights=shared), draft=smaller, num_processes=2)
    assert needed.shared_bytes // 1024 == weights_kb
    private_kb = [one["whole"]["Pss_Anon"] for one in found]
    assert max(private_kb) < needed.private_bytes / 1024
    assert min(private_kb) > 0.4 * needed.private_bytes / 1024  # it is no wild guess


def test_if_the_first_is_killed_the_next_packs(tmp_path: Path, shared: Path) -> None:
    directory = write_model(tmp_path / "model", "llama")
    first = Child(directory, shared, die_while_packing=True)
    first.process.communicate()
    assert first.process.returncode == -signal.SIGKILL
    assert len(list(shared.glob(".*.weights.*"))) == 1  # what it had written
    assert files(shared) == []
    second = Child(directory, shared)
    said = second.line()
    second.end()
    assert said["num_packed"] == 1
    assert list(shared.glob(".*.weights.*")) == []
    assert len(files(shared)) == 1
    with Engine(directory) as alone:
        assert said["tokens"] == generated(alone)
