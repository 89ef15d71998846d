"""The number of threads travels with the artefact."""

import dataclasses
import os

import pytest
import torch
from torch import nn

import whet.core.artefact
from whet.errors import OptionError
from whet.measure.machine import Limits
from whet.profiling.model import LayerCost, Profile
from whet.techniques import TABLE
from whet.techniques.runtime import threads
from whet.techniques.technique import Applies, Candidate, NotApplicable


def test_thread_counts_are_descending_and_end_with_one() -> None:
    choices = threads.TECHNIQUE.space["num_threads"]
    assert choices[-1] == 1
    assert sorted(set(choices), reverse=True) == list(choices)
    assert choices[0] <= len(os.sched_getaffinity(0))


def test_thread_counts_keep_within_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.psutil, "cpu_count", lambda logical: 32)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert threads.thread_counts() == (32, 16, 1)
    monkeypatch.setattr(threads, "cpu_quota", lambda: 4)
    assert threads.thread_counts() == (4, 2, 1)


def test_check(examined_of, machine) -> None:
    examined = examined_of(nn.Linear(2, 2), torch.randn(1, 2))
    alone = dataclasses.replace(machine, cores=1, torch_threads=1)
    assert threads.check(examined, alone, threads.Options(num_threads=1)) == NotApplicable("the machine has one core")
    crowded = dataclasses.replace(machine, cores=1)  # a quota, of which PyTorch knows nothing
    assert threads.check(examined, crowded, threads.Options(num_threads=1)) == Applies("1 instead of 4 threads")
    assert threads.check(examined, machine, threads.Options(num_threads=2)) == Applies("2 instead of 4 threads")
    for same_or_more in (4, 8):
        assert isinstance(threads.check(examined, machine, threads.Options(num_threads=same_or_more)), NotApplicable)


def test_the_bound_is_that_of_the_cores_that_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "thread_counts", lambda: (4, 2, 1))
    layer = LayerCost("fc", "Linear", 1, time_s=1e-2, flops=10**9, weight_bytes=4, activation_bytes=4, num_operators=1)
    profile = Profile(total_s=1e-2, layers=(layer,))
    limits = Limits(read_bandwidth=1e12, gemm={"float32": 4e11})
    bounds = [threads.predict(profile, limits, threads.Options(num_threads=number)) for number in (8, 4, 2, 1)]
    assert bounds == pytest.approx([4.0, 4.0, 3.0, 1.5]), "a core may clock higher while others rest"


def test_load_sets_them(examined_of, tmp_path) -> None:
    examined = examined_of(nn.Linear(2, 2), torch.randn(1, 2))
    tuned = threads.apply(Candidate.original(examined), threads.Options(num_threads=1))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        loaded = whet.core.artefact.load(tuned.save(tmp_path / "artefact"))
        assert torch.get_num_threads() == 1
        assert loaded.manifest.num_threads == 1
    finally:
        torch.set_num_threads(before)


def test_refuses_none(examined_of) -> None:
    candidate = Candidate.original(examined_of(nn.Linear(2, 2), torch.randn(1, 2)))
    with pytest.raises(OptionError, match="at least 1"):
        threads.apply(candidate, threads.Options(num_threads=0))


@pytest.mark.parametrize("name", ["threads", "openvino", "onnxruntime", "keep_precision", "int8_weight", "int8_static"])
def test_what_is_for_cpus_says_so_of_a_gpu(name, examined_of, machine) -> None:
    """Whatever is installed: who has a GPU is not to be told to install a backend that it cannot use."""
    examined = examined_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.randn(1, 2))
    batches = [(torch.empty(1, 2, device="meta"),)]  # stands in for a GPU
    on_gpu = dataclasses.replace(examined, workload=dataclasses.replace(examined.workload, inputs=batches))
    verdict = TABLE[name].check(on_gpu, machine, TABLE[name].options())
    assert isinstance(verdict, NotApplicable)
    assert "CPU" in verdict.reason
