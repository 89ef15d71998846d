"""The steps of `benchmarks/gpu.py`: each runs in a process of its own and returns {"sentence": ..., "figures": ...}.

A step raises where something is wrong; the script makes a row of the table of it.
"""

import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

ROOT = Path(__file__).parents[1]


def run_tests(selection: list[str]) -> dict[str, Any]:
    """Run the tests that are marked gpu. selection: further arguments of pytest."""
    with tempfile.TemporaryDirectory(prefix="whet-gpu-") as scratch:
        junit = Path(scratch) / "tests.xml"
        # Another torch than the one whet is tested with may warn of other things, which are errors in the suite.
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-W", "default", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junitxml={junit}", *selection], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if not junit.is_file():
            raise RuntimeError(f"pytest ended with exit code {done.returncode}: {(done.stdout + done.stderr)[-600:]}")
        suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert suite is not None
    failed = {
        f"{case.get('classname')}.{case.get('name')}": fault.get("message", "")[:300]
        for case in suite.iter("testcase")
        for fault in [*case.findall("failure"), *case.findall("error")]
    }
    skipped = [mark.get("message", "") for mark in suite.iter("skipped")]
    num_passed = int(suite.get("tests", 0)) - len(failed) - len(skipped)
    figures = {"num_passed": num_passed, "failed": failed, "skipped": skipped}
    sentence = f"{num_passed} passed, {len(failed)} failed, {len(skipped)} skipped"
    if failed:
        sentence += f": {', '.join(name.rpartition('.')[2] for name in failed)}"
    return {"sentence": sentence, "figures": figures, "ok": not failed and num_passed > 0}


def measure_limits(device: str) -> dict[str, Any]:
    """The machine's limits on the device."""
    from whet.machine import describe, load_limits

    limits = load_limits(describe(), refresh=True, device=device)
    products = ", ".join(f"{dtype} {rate / 1e12:.3g}" for dtype, rate in limits.gemm.items())
    sentence = f"TFLOP/s: {products}; memory {limits.read_bandwidth / 1e9:,.0f} GB/s"
    return {"sentence": f"{sentence}; an operator {limits.operator_s * 1e6:.1f} us", "figures": asdict(limits)}


def tune(target: str, budget_s: float) -> dict[str, Any]:
    """Tune a target; the figures are the result's summary, its techniques and every trial."""
    from whet.tuner.tuning import tune as run_tune

    with tempfile.TemporaryDirectory(prefix="whet-gpu-") as scratch:
        result = run_tune(target, budget_s=budget_s, trial_limit_s=max(30.0, budget_s), out=Path(scratch) / "out")
        summary = result.summary()
        for key in ("recipe", "report"):  # paths of a directory that is about to go
            summary.pop(key)
        trials = [
            {"recipe": t.label, "status": t.status, "reason": t.reason, "speedup": t.speedup} for t in result.trials
        ]
    figures = {**summary, "trials": trials, "refused": [r.model_dump() for r in result.refused]}
    return {"sentence": result.sentence, "figures": figures, "ok": result.verdict != "failed"}


def bench(target: str, batches: list[int], budget_s: float) -> dict[str, Any]:
    """Measure a target at several batch sizes, with memory and energy."""
    from whet.benchmark.sweep import bench as run_bench

    sweep = run_bench([target], batch=batches, budget_s=budget_s, with_memory=True, with_energy=True)
    figures = [point.model_dump(mode="json", exclude={"samples_ms"}) for point in sweep.points]
    failed = [f"{point.label}: {point.reason}" for point in sweep.points if point.status != "done"]
    said = ", ".join(
        f"batch {p.sizes.get('batch', p.num_samples)} {p.latency_ms:.3f} ms"
        + (f" {p.energy_j:.3g} J" if p.energy_j is not None else "")
        for p in sweep.points
        if p.latency_ms is not None
    )
    return {"sentence": "; ".join([said, *failed]), "figures": {"points": figures}, "ok": not failed}


def gate(target: str, processes: int, budget_s: float) -> dict[str, Any]:
    """Hold a target against a sweep of the same code, in which nothing is slower."""
    from whet.benchmark.against import against_baseline
    from whet.benchmark.sweep import bench as run_bench

    options: dict[str, Any] = {"processes": processes, "budget_s": budget_s}
    first, second = run_bench([target], **options), run_bench([target], **options)
    for sweep in (first, second):
        if sweep.points[0].status != "done":
            raise RuntimeError(sweep.points[0].reason)
    found = against_baseline(first, second)
    return _gated(found.outcome, found.verdicts[0].model_dump(mode="json"))


def gate_against(target: str, reference: str, budget_s: float) -> dict[str, Any]:
    """Hold the work tree against a git reference of the same code, in pairs of processes."""
    from whet.benchmark.against import compare_with

    known = ["git", "rev-parse", "--verify", reference]
    if shutil.which("git") is None or subprocess.run(known, cwd=ROOT, capture_output=True, check=False).returncode:
        return {"sentence": f"this is no git repository that has {reference}", "figures": {}, "skipped": True}
    found = compare_with([target], against=reference, looks=(6,), budget_s=budget_s, directory=ROOT)
    return _gated(found.outcome, found.verdicts[0].model_dump(mode="json"))


def _gated(outcome: str, verdict: dict[str, Any]) -> dict[str, Any]:
    for name in ("old_ms", "new_ms"):
        verdict.pop(name, None)
    low, high = verdict["ci95"] or (float("nan"), float("nan"))
    sentence = f"{outcome}: {verdict['slowdown'] or float('nan'):.3f} times as long ({low:.3f} to {high:.3f})"
    sentence += f"; {verdict['reason']}" if verdict["reason"] else ""
    return {"sentence": sentence, "figures": {"outcome": outcome, **verdict}, "ok": outcome != "fail"}


def profile(target: str, device: str) -> dict[str, Any]:
    """Profile a target; on a GPU its timeline, its memory and NVTX ranges must be there."""
    from whet.machine import describe, load_limits
    from whet.profiler.workload_profile import profile_workload, run_for_nsight
    from whet.workloads import resolve

    workload = resolve(target)
    found = profile_workload(workload, limits=lambda: load_limits(describe(), device=device), target=target)
    report = found.report
    if report.partial:
        raise RuntimeError(report.partial)
    assert report.verdict is not None
    assert report.operators is not None
    assert report.memory is not None
    if device == "cuda":
        assert report.memory.device == "cuda", "memory is the process's, not the GPU's"
        assert all(section.gpu_s is not None and section.gpu_s > 0 for section in report.sections[:1]), "no GPU times"
        assert report.operators.device_s, "the trace holds no kernel"
        run_for_nsight(workload)
    figures = {
        "verdict": report.verdict.sentences,
        "call_ms": (report.call_s or 0.0) * 1e3,
        "layers_sum_ms": sum(layer.time_s for layer in report.layers) * 1e3,
        "peak_bytes": report.memory.peak_bytes,
        "device_s": report.operators.device_s,
        "slowest": [cost.name for cost in report.operators.costs[:5]],
        "trace_bytes": len(found.trace or b""),
        "notes": report.notes,
    }
    return {"sentence": report.verdict.sentences[0], "figures": figures}


def watch(device: str, width: int, num_steps: int) -> dict[str, Any]:
    """Watch a training loop: where its steps go, on the host's clock and on the GPU's."""
    import whet

    steps, run = _train(device, width, num_steps)
    watched = whet.watch(*steps)
    run(watched)
    report = watched.report()
    if device == "cuda":
        assert any(phase.gpu_ms for phase in report.phases), "no phase was timed on the GPU"
    return {"sentence": report.sentence, "figures": {"step_ms": report.step_ms, "phases": report.as_json()["phases"]}}


def monitor(device: str, width: int, num_steps: int) -> dict[str, Any]:
    """Monitor a training loop; on a GPU its use and memory, by NVML."""
    import whet

    steps, run = _train(device, width, num_steps)
    with whet.Monitor(show=False, interval_s=0.1) as monitored:
        run(monitored.batches(steps[2]), monitored.step)
        time.sleep(0.3)  # for a sample, where all steps are over in less
        summary = monitored.summary()
    figures = {
        "num_steps": summary.num_steps,
        "gpus": [asdict(gpu) for gpu in summary.gpus],
        "unavailable": summary.unavailable,
    }
    if device == "cuda":
        assert summary.gpus, f"no GPU was seen: {summary.unavailable}"
        assert summary.gpus[0].peak_allocated_bytes, "nothing is known of the allocator's memory"
    used = [f"{g.name} {g.utilisation or 0:.0%}, {(g.peak_bytes or 0) / 2**30:.1f} GiB" for g in summary.gpus]
    return {"sentence": "; ".join([f"{summary.num_steps} steps", *used]), "figures": figures}


def _train(device: str, width: int, num_steps: int) -> tuple[tuple[Any, Any, Any], Any]:
    """(model, optimiser, batches), and a function that trains over batches that come through an observer.

    It calls its second argument after each step.
    """
    from gpu_targets import training

    model, optimizer, batches = training(device, width, num_steps)

    def run(observed: Any, after: Callable[[], Any] = lambda: None) -> None:
        for ids_BT in observed:
            ids_BT = ids_BT.to(device, non_blocking=True)
            optimizer.zero_grad()
            logits_BTV = model(ids_BT[:, :-1])
            F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten()).backward()
            optimizer.step()
            after()
        if device == "cuda":
            torch.cuda.synchronize()

    return (model, optimizer, batches), run
