"""The steps of `benchmarks/gpu.py`: each runs in a process of its own and returns {"sentence": ..., "figures": ...}.

A step raises where something is wrong; the script makes a row of the table of it.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

ROOT = Path(__file__).parents[1]


def run_tests(selection: list[str]) -> dict[str, Any]:
    """Run the tests that are marked gpu, beside each other. selection: further arguments of pytest."""
    workers = str(min(12, os.cpu_count() or 1))
    with tempfile.TemporaryDirectory(prefix="whet-gpu-") as scratch:
        junit = Path(scratch) / "tests.xml"
        # Another torch than the one whet is tested with may warn of other things, which are errors in the suite.
        options = ["-q", "-n", workers, "--dist", "worksteal", "-W", "default", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "gpu", *options, f"--junitxml={junit}", *selection],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
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
    from whet.measure.machine import describe, load_limits

    limits = load_limits(describe(), refresh=True, device=device)
    products = ", ".join(f"{dtype} {rate / 1e12:.3g}" for dtype, rate in limits.gemm.items())
    sentence = f"TFLOP/s: {products}; memory {limits.read_bandwidth / 1e9:,.0f} GB/s"
    return {"sentence": f"{sentence}; an operator {limits.operator_s * 1e6:.1f} us", "figures": asdict(limits)}


def tune(target: str, budget_s: float) -> dict[str, Any]:
    """Tune a target; the figures are the result's summary, its techniques and every trial."""
    from whet.tuner.tuning import tune as run_tune

    # Its own time limit is longer than the budget: the last process may end a little after it.
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
    from whet.comparison.bench.sweep import bench as run_bench

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
    from whet.comparison.bench.against import against_baseline
    from whet.comparison.bench.sweep import bench as run_bench

    options: dict[str, Any] = {"processes": processes, "budget_s": budget_s}
    first, second = run_bench([target], **options), run_bench([target], **options)
    for sweep in (first, second):
        if sweep.points[0].status != "done":
            raise RuntimeError(sweep.points[0].reason)
    found = against_baseline(first, second)
    return _gated(found.outcome, found.verdicts[0].model_dump(mode="json"))


def gate_against(target: str, reference: str, budget_s: float) -> dict[str, Any]:
    """Hold the work tree against a git reference of the same code, in pairs of processes."""
    from whet.comparison.bench.against import compare_with

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
    from whet.measure.machine import describe, load_limits
    from whet.profiling.model.workload_profile import profile_workload, run_for_nsight
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


TRAINED = {
    "float32": [],
    "autocast": ["autocast"],
    "autocast, fused": ["autocast", "fused_optimizer"],
    "autocast, fused, own loss": ["autocast", "fused_optimizer", "chunked_loss"],
    "autocast, fused, compiled": ["autocast", "fused_optimizer", "compile"],
    "fp8, fused, compiled": ["fp8", "fused_optimizer", "compile"],
}
_BURST_STEPS, _BURSTS = 5, 7


def train_steps(device: str, is_small: bool) -> dict[str, Any]:
    """Time steps of a transformer's training under recipes, in turns, beside the plain loop in float32."""
    from whet.comparison.claim import claim_of
    from whet.errors import RecipeError

    bursts, peaks, refused, failed = {}, {}, {}, {}
    for name, techniques in TRAINED.items():
        try:
            bursts[name] = _bursts_of(techniques, device, is_small)
            bursts[name]()  # compiles
            peaks[name] = _peak_of(bursts[name], device)
        except RecipeError as error:
            bursts.pop(name, None)
            refused[name] = str(error)
        except Exception as error:  # noqa: BLE001 - one recipe that fails does not hide the others
            bursts.pop(name, None)
            failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
    times: dict[str, list[float]] = {name: [] for name in bursts}
    for i in range(_BURSTS):
        for name in sorted(bursts, key=lambda name: hash((i, name))):
            times[name].append(bursts[name]())
    plain = times.pop("float32")
    claims = {name: claim_of(plain, found) for name, found in times.items()}
    figures = {
        "step_ms": {"float32": 1e3 * statistics.median(plain)}
        | {name: 1e3 * statistics.median(found) for name, found in times.items()},
        "over_float32": {name: {"ratio": claim.ratio, "ci95": claim.ci95} for name, claim in claims.items()},
        "peak_bytes": peaks,
        "refused": refused,
        "failed": failed,
    }
    said = [f"float32 {1e3 * statistics.median(plain):.2f} ms"]
    said += [
        f"{name} {claim.ratio:.2f}x ({claim.ci95[0]:.2f} to {claim.ci95[1]:.2f})" for name, claim in claims.items()
    ]
    said += [f"{name} refused: {why}" for name, why in refused.items()]
    said += [f"{name} failed: {why}" for name, why in failed.items()]
    return {"sentence": "; ".join(said), "figures": figures, "ok": not failed}


def _bursts_of(techniques: list[str], device: str, is_small: bool) -> Callable[[], float]:
    """Return a function that trains for some steps and returns the seconds of one."""
    from gpu_targets import TRAINING, training

    import whet
    from whet.core.recipe import Recipe, Step

    width, layers, batch, tokens = TRAINING[is_small]
    model, optimizer, batches = training(device, width, _BURST_STEPS, num_layers=layers, batch=batch, tokens=tokens)
    loader = [ids_BT.to(device) for ids_BT in batches]
    if techniques:
        recipe = Recipe(steps=tuple(Step(technique=name) for name in techniques), kind="training")
        model, optimizer, loader = whet.prepare(model, optimizer, loader, recipe=recipe)

    def burst() -> float:
        _wait(device)
        began = time.perf_counter()
        for ids_BT in loader:
            optimizer.zero_grad()
            logits_BTV = model(ids_BT[:, :-1])
            F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten()).backward()
            optimizer.step()
        _wait(device)
        return (time.perf_counter() - began) / _BURST_STEPS

    return burst


def _peak_of(burst: Callable[[], float], device: str) -> int | None:
    """Return the peak of CUDA's allocator over a burst; None on a CPU."""
    if device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    burst()
    return torch.cuda.max_memory_allocated()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def stream(device: str, num_frames: int) -> dict[str, Any]:
    """Stream signs-stream with CUDA graphs and without, in turns, in two formats."""
    from whet.comparison.claim import claim_of
    from whet.streamer.sinks.sink import NullSink
    from whet.streamer.sources.synthetic import SyntheticClip
    from whet.streamer.stream import Stream, StreamOptions

    graphs = (False, True) if device == "cuda" else (False,)
    formats = ("float32", "fp16") if device == "cuda" else ("float32",)
    times: dict[tuple[str, int, bool], list[float]] = {}
    for _ in range(5):
        for dtype in formats:
            for steps in (1, 4):
                for with_graphs in graphs:
                    options = StreamOptions(device=device, dtype=dtype, steps=steps, graphs=with_graphs)
                    clip = partial(SyntheticClip, num_frames)
                    with Stream("signs-stream", lambda size, clip=clip: clip(size=size), options) as running:
                        report = running.run(NullSink())
                    times.setdefault((dtype, steps, with_graphs), []).append(report.wall_s / num_frames)
    said, figures = [], {}
    for (dtype, steps, with_graphs), found in times.items():
        row: dict[str, Any] = {"frames_per_s": 1 / statistics.median(found)}
        text = f"{dtype}, {steps} steps{', graphs' * with_graphs}: {row['frames_per_s']:.0f} frames/s"
        if with_graphs:
            claim = claim_of(times[dtype, steps, False], found)
            row |= {"over_no_graphs": claim.ratio, "ci95": claim.ci95}
            text += f", {claim.ratio:.2f}x ({claim.ci95[0]:.2f} to {claim.ci95[1]:.2f}) of those without"
        said.append(text)
        figures[f"{dtype}, {steps} steps, {'with' if with_graphs else 'without'} graphs"] = row
    return {"sentence": "; ".join(said), "figures": figures}
