"""What whet does on a real GPU, or on what WHET_GPU_STANDIN names: then what only a GPU has is not asked for."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import whet
import whet.errors
import whet.techniques
from whet.comparison.bench.point import measure_point
from whet.core.recipe import Step
from whet.core.workload import Workload, examine
from whet.errors import MissingExtra
from whet.measure.clock import measure_calls
from whet.measure.machine import EnergyMeter, describe, load_limits
from whet.profiling.model.workload_profile import profile_workload, run_for_nsight
from whet.techniques import TABLE
from whet.techniques.technique import Candidate, NotApplicable
from whet.tuner.known_target import INPUTS, KnownTarget, read_inputs, write_inputs
from whet.tuner.trial import TrialRequest, run_trial
from whet.tuner.variant_process import VariantRequest, measure_variant
from whet.workloads import BUILTIN, resolve

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

MODEL = """
import torch
from torch import nn

def build(device="cpu"):
    torch.manual_seed(0)
    layers = (part for _ in range(4) for part in (nn.Linear(512, 512), nn.GELU()))
    return nn.Sequential(*layers).to(device).eval(), [torch.randn(64, 512, device=device) for _ in range(2)]
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are quickly measured, and kept from other runs."""
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def target(tmp_path: Path, gpu: str) -> str:
    path = tmp_path / "model_of_a_test.py"
    path.write_text(MODEL)
    return f"{path}:build?device={gpu}"


@pytest.mark.parametrize("name", BUILTIN)
def test_the_built_in_workloads_score_as_on_the_cpu(name: str, gpu: str) -> None:
    try:
        examined = examine(resolve(f"{name}?device={gpu}"))
        on_cpu = examine(resolve(name))
    except MissingExtra as error:
        pytest.skip(str(error))
    assert {p.device.type for p in examined.workload.model.parameters()} == {gpu}
    assert examined.device_type == gpu
    assert examined.outputs[0][0].device.type == gpu
    assert examined.score == pytest.approx(on_cpu.score, rel=0.01)  # one sample of 400 may flip in TF32


def test_a_call_is_timed_until_the_gpu_has_ended(gpu: str) -> None:
    """A call that only puts work on the stream would be timed at microseconds."""
    x = torch.randn(2048, 2048, device=gpu)

    def work() -> None:
        for _ in range(4):
            x @ x

    found = measure_calls([work], budget_s=0.3)
    if gpu == "cuda":
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        stop.synchronize()
        assert found.latency_ms > 0.5 * start.elapsed_time(stop)


def test_inputs_come_back_on_their_device(target: str, gpu: str, tmp_path: Path) -> None:
    examined = examine(resolve(target))
    write_inputs(examined, tmp_path / INPUTS)
    for batch, (found,) in zip(examined.flat_inputs, read_inputs(tmp_path / INPUTS), strict=True):
        assert found.device.type == gpu
        assert torch.equal(found, batch[0])


def test_a_trial_and_a_process_of_the_final_comparison(target: str, gpu: str, tmp_path: Path) -> None:
    examined = examine(resolve(target))
    write_inputs(examined, tmp_path / INPUTS)
    known = KnownTarget(target=target, directory=tmp_path, signature=examined.signature)
    request = TrialRequest(
        known=known,
        steps=(Step(technique="autocast"),),
        directory=tmp_path / "artefact",
        max_drop=0.05,
        timing_s=0.3,
    )
    found = run_trial(request)
    if found.status == "refused":
        pytest.skip(found.reason)
    assert found.status == "done"
    assert found.latency_ms is not None and found.latency_ms > 0
    final = measure_variant(VariantRequest(directory=request.directory, inputs=tmp_path / INPUTS, budget_s=0.2))
    assert final.seconds > 0
    assert (final.cuda_peak_bytes is not None) == (gpu == "cuda")


def test_what_a_loaded_model_is_given_on_the_wrong_device(target: str, gpu: str, tmp_path: Path) -> None:
    """A compiled package reads addresses: it must refuse, not read memory that is not there."""
    examined = examine(resolve(target))
    inductor = TABLE["inductor"]
    verdict = inductor.check(examined, describe(), inductor.options())
    if isinstance(verdict, NotApplicable):
        pytest.skip(verdict.reason)
    candidate = inductor.apply(Candidate.original(examined), inductor.options())
    artefact = whet.load(candidate.save(tmp_path / "artefact"))
    (x,) = examined.flat_inputs[0]
    assert artefact.run(x)[0].device.type == gpu
    with pytest.raises(whet.errors.InputsError, match=f"runs on {gpu}"):
        artefact.run(x.to("cpu" if gpu == "cuda" else "meta"))


def test_a_point_of_a_sweep(target: str, gpu: str) -> None:
    found = measure_point(target, {"batch": 16}, 0.2, with_memory=True, with_energy=True, with_limit=False)
    assert found["latency_ms"] > 0
    assert found["num_samples"] == 16
    if gpu == "cuda":
        weights = 4 * 512 * 513 * 4
        assert weights < found["cuda_peak_bytes"] < 2**30
        assert found["watts"] is None or found["watts"] > 10


def test_a_profile_has_the_gpus_times_and_memory(target: str, gpu: str) -> None:
    workload = resolve(target)
    found = profile_workload(workload, limits=lambda: load_limits(describe(), device=gpu))
    report = found.report
    assert not report.partial
    assert report.device == gpu
    assert found.trace
    assert report.memory is not None
    assert report.memory.device == gpu
    if gpu == "cuda":
        assert report.sections[0].gpu_s
        assert report.operators is not None
        assert report.operators.device_s
        assert any("addmm" in cost.name and cost.device_self_s for cost in report.operators.costs)
        assert report.memory.peak_bytes >= report.memory.start_bytes > 0
        assert report.fragmentation is not None
        run_for_nsight(workload)


def test_a_block_is_profiled_on_the_gpu(gpu: str) -> None:
    layer, x = nn.Linear(256, 256).to(gpu), torch.randn(32, 256, device=gpu)
    with whet.profile(device=gpu, operators=True, memory=True) as p:
        for _ in range(8):
            with p.section("forward"):
                layer(x)
            p.step()
    (forward,) = [section for section in p.report.sections if section.path[-1] == "forward"]
    assert forward.calls == 8
    assert (forward.gpu_s is not None) == (gpu == "cuda")


def test_a_training_loop_is_timed_on_the_gpus_clock(gpu: str) -> None:
    model = nn.Linear(256, 256).to(gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = whet.watch(model, optimizer, [torch.randn(64, 256) for _ in range(40)])
    for x in steps:
        optimizer.zero_grad()
        F.mse_loss(model(x.to(gpu)), torch.zeros(64, 256, device=gpu)).backward()
        optimizer.step()
    report = steps.report()
    assert report.device == gpu
    assert report.num_steps == 40
    assert any(phase.gpu_ms for phase in report.phases) == (gpu == "cuda")


def test_energy_and_limits(gpu: str) -> None:
    if gpu != "cuda":
        pytest.skip("these are a GPU's own")
    x = torch.randn(4096, 4096, device="cuda")
    meter = EnergyMeter()
    meter.start()
    measure_calls([lambda: x @ x], budget_s=1.0)
    energy = meter.stop()
    if meter._gpus:  # a virtual GPU may count none
        assert energy.joules["gpu-0"] > 1
    workload = Workload(model=nn.Identity(), inputs=[x])
    assert examine(workload).outputs[0][0].device.type == "cuda"
