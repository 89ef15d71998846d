"""A workload's profile: layers against the whole call and torch's counter; models that fail on the way."""

import gzip
import json

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from whet.core.workload import Workload
from whet.errors import ModelError
from whet.measure.machine import Limits
from whet.models.encoder import Encoder, EncoderConfig
from whet.profiling.model import Profile
from whet.profiling.model.report import Report
from whet.profiling.model.verdict import Hint
from whet.profiling.model.workload_profile import WorkloadProfile, device_of, profile_workload

LIMITS = Limits(read_bandwidth=2e10, gemm={"float32": 1e11})


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.profiling.model.workload_profile._TIMING_S", 0.2)
    monkeypatch.setattr("whet.profiling.model.workload_profile._PASS_S", 0.2)


def profiled(model: nn.Module, x: Tensor, **more: object) -> WorkloadProfile:
    return profile_workload(Workload(model=model.eval(), inputs=[x]), limits=lambda: LIMITS, **more)  # type: ignore[arg-type]


class Failing(nn.Module):
    """Raises from the call after `after` on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.calls, self.after = 0, after

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > self.after:
            raise RuntimeError("the wheel came off")
        return self.linear(x)  # type: ignore[no-any-return]


class Hoarding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.seen.append(y * 2)  # planted
        return y  # type: ignore[no-any-return]


def test_everything_of_a_sound_model() -> None:
    model, x = Encoder(EncoderConfig(num_layers=2)), torch.randint(0, 2048, (4, 64))
    passes: list[Report] = []

    class Exported(nn.Module):  # a copy that shares the weights, as an export leaves behind
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

    wrappers = []

    def advise(workload: Workload, profile: Profile, limits: Limits) -> list[Hint]:
        wrappers.append(Exported(workload.model))
        return [Hint("bf16", 1.5)]

    found = profiled(model, x, advise=advise, target="mine", depth=3, done=passes.append)
    report = found.report
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(x)
    assert report.partial == ""
    assert report.total_flops == counter.get_total_flops()
    assert report.call_s is not None and report.layers_s == pytest.approx(report.call_s, rel=0.35)  # benchmarks: 10 %
    for line in report.layers:
        assert line.intensity is None or line.intensity == line.flops / line.num_bytes
        assert line.bound.endswith("-bound")
    assert report.verdict is not None and [h.technique for h in report.verdict.hints] == ["bf16"]
    assert "whet tune mine" in report.verdict.text
    assert report.latency is not None and report.latency.num_calls >= 5
    assert report.memory is not None and report.memory.is_peak_exact
    paths = {s.path for s in report.sections}
    assert ("Encoder", "layers.1", "up") in paths and max(map(len, paths)) == 3
    root = report.sections[0]
    assert root.total_s >= sum(s.total_s for s in report.sections if s.depth == 2)
    assert report.tensors is not None and root.peak_bytes == pytest.approx(report.tensors.peak_bytes, rel=0.02)
    assert report.leaks == ()
    assert {live.name for live in report.largest} >= {"Encoder.token_embedding.weight"}
    assert report.operators is not None and report.operators.costs
    assert found.trace is not None
    names = {e.get("name") for e in json.loads(gzip.decompress(found.trace))["traceEvents"]}
    assert {"aten::addmm", "whet: one call"} <= names
    assert len(passes) == 5 and passes[0].layers == () and passes[-1].leaks == ()
    assert not any("forward" in vars(module) for module in model.modules())  # left as it was


def test_a_model_that_hoards_is_found_out() -> None:
    report = profiled(Hoarding(), torch.randn(8, 64)).report
    assert report.leaks is not None
    (leak,) = report.leaks
    assert leak.line.text == "self.seen.append(y * 2)  # planted"
    assert leak.bytes_per_step == 8 * 64 * 4
    assert leak.held_by == "the list 'Hoarding.seen'"
    assert report.verdict is not None and "Memory grows by 2.05 kB a call; look first at" in report.verdict.text


def test_a_first_call_that_raises_is_an_error() -> None:
    with pytest.raises(ModelError, match="first call: the wheel came off"):
        profiled(Failing(0), torch.randn(2, 64))


def test_a_model_that_raises_while_it_is_timed_keeps_its_times() -> None:
    report = profiled(Failing(4), torch.randn(2, 64)).report
    assert (
        report.partial
        == "while it was being timed, after 3 good calls, the model raised RuntimeError: the wheel came off"
    )
    assert report.latency is not None and report.latency.num_calls == 3
    assert report.memory is not None
    assert report.layers == () and report.operators is None


def test_a_model_that_raises_later_keeps_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Failing(10**9)

    def fail(run: object) -> None:
        model.after = model.calls
        model(torch.randn(2, 64))

    monkeypatch.setattr("whet.profiling.model.workload_profile._trace", fail)
    found = profiled(model, torch.randn(2, 64))
    assert found.report.partial == "while it was being traced, the model raised RuntimeError: the wheel came off"
    assert found.report.layers and found.report.sections and found.report.verdict
    assert found.trace is None and found.report.tensors is None


def test_techniques_that_cannot_be_told_are_a_note() -> None:
    def advise(workload: Workload, profile: Profile, limits: Limits) -> list[Hint]:
        raise ModelError("the model is not deterministic")

    report = profiled(nn.Linear(8, 8), torch.randn(2, 8), advise=advise).report
    assert report.verdict is not None and report.verdict.hints == ()
    assert any("not deterministic" in note for note in report.notes)


@pytest.mark.parametrize("num_samples", [0, 1])
def test_no_sample_and_one(num_samples: int) -> None:
    report = profiled(nn.Linear(8, 8), torch.randn(num_samples, 8)).report
    assert report.partial == "" and report.latency is not None
    assert any("no samples" in note for note in report.notes) == (num_samples == 0)


def test_inputs_by_name_and_several_batches() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"sum": x + y}

    batches = [{"x": torch.ones(n, 4), "y": torch.ones(n, 4)} for n in (2, 3)]
    workload = Workload(model=Named(), inputs=batches)
    assert device_of(workload) == "cpu"
    report = profile_workload(workload, limits=lambda: LIMITS).report
    assert report.partial == ""
    assert report.largest[0].name == "inputs"
