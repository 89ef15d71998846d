"""Which malloc a process uses, and what is said where another one is asked for."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from preloaded import made_allocator
from tiny_training import adamw, tiny_workload

from whet.errors import RecipeError
from whet.measure import malloc
from whet.measure.machine import describe
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE

TECHNIQUE = TRAINING_TABLE["allocator"]


def verdict(kind: str) -> Applies | NotApplicable:
    model = tiny_workload().model
    return TECHNIQUE.check(Parts(model, adamw(model.parameters()), []), describe(), TECHNIQUE.options(kind=kind))


@pytest.mark.parametrize(("is_used", "told"), [(True, "True False False"), (False, "False False True")])
def test_another_malloc_is_recognised_where_it_is_used(tmp_path: Path, is_used: bool, told: str) -> None:
    library = made_allocator(tmp_path / "libjemalloc.so.2", is_used=is_used)
    code = "from whet.measure.malloc import *; print(is_loaded('jemalloc'), is_loaded('tcmalloc'), has_glibc())"
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    for given, said in ((environment, told), (dict(os.environ), "False False True")):
        answer = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == said


def test_where_another_malloc_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "lib").mkdir()
    for name in ("libjemalloc.so.2", "libtcmalloc_minimal.so.4"):
        (tmp_path / "lib" / name).touch()
    assert malloc.find("jemalloc") == tmp_path / "lib" / "libjemalloc.so.2"
    assert malloc.find("tcmalloc") is not None
    refused = verdict("jemalloc")
    assert isinstance(refused, NotApplicable)
    assert f"LD_PRELOAD={tmp_path}/lib/libjemalloc.so.2 python" in refused.reason
    assert refused.at_start, "a process that is started anew can have it"
    monkeypatch.setenv("LD_PRELOAD", "/other/libfirst.so:/elsewhere/libjemalloc.so.2")
    refused = verdict("jemalloc")
    assert isinstance(refused, NotApplicable) and not refused.at_start
    assert refused.reason.startswith("LD_PRELOAD names /elsewhere/libjemalloc.so.2, but this process does not use it")


def test_libraries_of_another_processor_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for folder in ("aarch64-linux-gnu", "i386-linux-gnu", "x86_64-linux-gnu"):
        (tmp_path / "lib" / folder).mkdir(parents=True)
        (tmp_path / "lib" / folder / "libjemalloc.so.2").touch()
    assert malloc.find("jemalloc") == tmp_path / "lib" / f"{platform.machine()}-linux-gnu" / "libjemalloc.so.2"


def test_what_a_process_must_start_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TECHNIQUE.environment is not None
    jemalloc, keep = TECHNIQUE.options(kind="jemalloc"), TECHNIQUE.options(kind="keep")
    monkeypatch.setattr("whet.techniques.training.allocator.find", lambda library: tmp_path / f"lib{library}.so")
    assert TECHNIQUE.environment(jemalloc) == {"LD_PRELOAD": str(tmp_path / "libjemalloc.so")}
    assert TECHNIQUE.environment(keep) == {}
    monkeypatch.setattr("whet.techniques.training.allocator.find", lambda library: None)
    with pytest.raises(RecipeError, match="jemalloc is not installed; on Debian and Ubuntu: apt install libjemalloc2"):
        TECHNIQUE.environment(jemalloc)
    monkeypatch.setattr("whet.techniques.training.allocator.is_loaded", lambda library: True)
    assert TECHNIQUE.environment(jemalloc) == {}, "processes that this one starts use it too"


def test_what_is_said_of_other_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr("whet.techniques.training.allocator.find", lambda library: None)
    for kind, reason in (
        ("jemalloc", "apt install libjemalloc2"),
        ("tcmalloc", "apt install libtcmalloc-minimal4"),
        ("expandable_segments", "those of a GPU's memory"),
        ("hoard", "kind must be one of"),
    ):
        refused = verdict(kind)
        assert isinstance(refused, NotApplicable)
        assert reason in refused.reason
    monkeypatch.setattr("whet.techniques.training.allocator.is_loaded", lambda library: True)
    assert isinstance(verdict("tcmalloc"), Applies)


@pytest.mark.gpu
def test_segments_of_a_gpus_memory_can_grow() -> None:
    model = torch.nn.Linear(64, 64, device="cuda")
    parts = Parts(model, adamw(model.parameters()), [])
    options = TECHNIQUE.options(kind="expandable_segments")
    assert isinstance(TECHNIQUE.check(parts, describe(), options), Applies)
    TECHNIQUE.apply(parts, options)
    torch.cuda.empty_cache()
    kept = torch.empty(64 * 2**20, device="cuda")
    segments = [s for s in torch.cuda.memory_snapshot() if s["total_size"] >= kept.nbytes]
    assert any(segment["is_expandable"] for segment in segments)


def test_freed_memory_stays_in_the_process() -> None:
    """A block of 80 MB, which glibc would give back to the system as it is freed."""
    code = """
import sys
import psutil
from whet.measure.malloc import keep_all_memory
if sys.argv[1] == "keeps":
    keep_all_memory()
process = psutil.Process()
block = bytearray(b"1") * 80_000_000
held = process.memory_info().rss
del block
print(held - process.memory_info().rss > 60_000_000)
"""
    for given, told in (("keeps", "False"), ("plain", "True")):
        answer = subprocess.run([sys.executable, "-c", code, given], capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == told
