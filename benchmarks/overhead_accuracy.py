"""Whether what `whet profile` says is right: its figures over those of others, for the built-in workloads."""

import os
import subprocess
import sys
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import whet
from whet.core.signature import split
from whet.measure.machine import describe, load_limits
from whet.profiling.model.workload_profile import profile_workload
from whet.workloads import resolve

TARGETS = ("digits-cnn", "docs-encoder", "docs-gpt")
_LARGE = {"batch": 128}  # so that what the calls hold stands out from what lay there before
_WATCHER = """
import select, sys, psutil
process, most = psutil.Process(int(sys.argv[1])), 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.0005)[0]:
    most = max(most, process.memory_info().rss)
print(most)
"""


def accuracies() -> list[dict[str, Any]]:
    """For each workload: layers' times over the whole call's; FLOPs over PyTorch's count; peak memory over what another
    process saw this one hold at the most."""
    return [
        {"target": target, **_of_profile(target), "peak_over_kernel": _peak_over_seen(target)} for target in TARGETS
    ]


def _of_profile(target: str) -> dict[str, float]:
    workload = resolve(target)
    report = profile_workload(workload, limits=lambda: load_limits(describe())).report
    args, kwargs = split(workload.inputs[0])
    # With attention as plain matrix products: the counter has no formula for the fused one of CPUs.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        workload.model(*args, **kwargs)
    assert report.call_s is not None
    return {
        "layers_over_call": report.layers_s / report.call_s,
        "flops_over_counted": report.total_flops / counter.get_total_flops(),
    }


def _peak_over_seen(target: str) -> float:
    workload = resolve(target, _LARGE)
    args, kwargs = split(workload.inputs[0])
    command = [sys.executable, "-c", _WATCHER, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        with whet.profile() as profile, torch.no_grad():
            for _ in range(5):
                workload.model(*args, **kwargs)
        seen, _ = watcher.communicate()
    memory = profile.report.memory
    assert memory is not None
    return float(memory.peak_bytes / int(seen))
