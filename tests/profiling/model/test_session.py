"""`with whet.profile() as p:` as a user would write it."""

import gzip
import io
import json
import time
from pathlib import Path

import psutil
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import whet
from whet.errors import OptionError, OutputError
from whet.measure.machine import Limits
from whet.profiling.model.report import from_json
from whet.profiling.model.session import Session, nsight_commands, profile


def loop(p: Session, num_steps: int, *, wait_s: float = 0.0, losses: list[torch.Tensor] | None = None) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        with p.section("data"):
            time.sleep(wait_s)
            x = torch.randn(32, 64)
        with p.section("step"):
            with p.section("forward"):
                loss = model(x).square().mean()
            with p.section("backward"):
                loss.backward()
            with p.section("optimiser"):
                optimizer.step()
                optimizer.zero_grad()
        if losses is not None:
            losses.append(loss)
        p.step()
    return model


def test_sections_of_a_loop() -> None:
    with whet.profile() as p:  # a process's first optimiser imports for longer than the loop waits
        loop(p, 1)
    with whet.profile() as p:
        loop(p, 6, wait_s=0.01)
    report = p.report
    assert [s.path[-1] for s in report.sections] == ["data", "step", "forward", "backward", "optimiser"]
    assert {s.calls for s in report.sections} == {6}
    assert sum(s.total_s for s in report.sections if s.depth == 1) <= report.wall_s
    assert report.num_steps == 6
    assert report.partial == ""
    assert not report.instrumented
    assert report.verdict is not None and report.verdict.bound == "waiting"
    assert "'data'" in report.verdict.text
    assert report.memory is not None
    assert report.memory.peak_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    assert report.operators is None and report.tensors is None and report.leaks is None


def test_what_tracing_costs_is_no_time_of_the_block() -> None:
    with whet.profile(operators=True) as p:
        loop(p, 6)
    # Starting the tracer and writing its trace keep several threads busy, for longer than these steps.
    assert 0 < p.report.cpu_s <= p.report.wall_s * (torch.get_num_threads() + 1)


def test_an_exception_goes_on_and_the_measured_part_is_kept() -> None:
    p = profile()
    with pytest.raises(ValueError, match="boom"), p:
        loop(p, 2)
        with p.section("last"):
            raise ValueError("boom")
    assert p.report.partial == "the block raised ValueError: boom"
    assert [s.path[-1] for s in p.report.sections] == ["data", "step", "forward", "backward", "optimiser", "last"]
    assert p.report.num_steps == 2
    out = io.StringIO()
    p.show(Console(file=out, width=80))
    assert "PARTIAL" in out.getvalue() and "boom" in out.getvalue()


def test_an_exception_with_every_instrument_on_leaves_none_behind() -> None:
    with pytest.raises(ValueError, match="boom"), profile(operators=True, memory=True) as p:
        loop(p, 1)
        raise ValueError("boom")
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert p.report.operators is not None
    with profile(operators=True) as again:
        torch.ones(3).relu()
    assert again.report.operators is not None and again.report.operators.costs


def test_operators_of_a_few_steps_after_the_first() -> None:
    with profile(operators=True, active_steps=2) as p:
        model = loop(p, 8)
    operators = p.report.operators
    assert operators is not None
    calls = {(c.name, c.shapes): c.calls for c in operators.costs}
    assert calls["addmm", "[128] [32, 64] [64, 128]"] == 2
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(32, 64)).sum().backward()
    assert operators.flops == 2 * counter.get_total_flops()
    assert p.report.instrumented


def test_operators_of_a_block_without_steps() -> None:
    with profile(operators=True) as p:
        for _ in range(3):
            torch.ones(8).relu()
    assert p.report.operators is not None
    assert {c.name: c.calls for c in p.report.operators.costs}["relu"] == 3


def test_a_share_of_the_limit_where_limits_are_given() -> None:
    with profile(operators=True, limits=Limits(read_bandwidth=1e10, gemm={"float32": 1e13})) as p:
        a = torch.randn(256, 256)
        for _ in range(20):
            a @ a
    assert p.report.verdict is not None
    share = p.report.verdict.share_of_limit
    assert share is not None and 0 < share < 1
    assert p.report.operators is not None
    assert share == pytest.approx(20 * 2 * 256**3 / p.report.operators.traced_s / 1e13)


def test_memory_names_the_line_that_leaks() -> None:
    losses: list[torch.Tensor] = []
    with profile(memory=True) as p:
        model = loop(p, 8, losses=losses)
    assert model.training
    assert p.report.leaks is not None
    (leak,) = p.report.leaks
    assert leak.line.text == "loss = model(x).square().mean()"
    assert p.report.tensors is not None
    assert len(p.report.tensors.step_bytes) == 8
    assert p.report.largest[0].allocation.num_bytes == 64 * 128 * 4
    sections = {s.path: s for s in p.report.sections}
    assert sections["step", "forward"].peak_bytes <= p.report.tensors.peak_bytes


def test_a_clean_loop_is_said_to_be_clean() -> None:
    with profile(memory=True) as p:
        loop(p, 8)
    assert p.report.leaks == ()
    out = io.StringIO()
    p.show(Console(file=out, width=80))
    assert "growth  none" in out.getvalue()


def test_too_few_steps_are_said() -> None:
    with profile(memory=True) as p:
        loop(p, 2)
    assert any("at least 5 steps" in note for note in p.report.notes)
    assert p.report.leaks is None  # not none: nothing can be told
    out = io.StringIO()
    p.show(Console(file=out, width=80))
    assert "growth  none" not in out.getvalue()


def test_json_and_files(tmp_path: Path) -> None:
    with profile(operators=True, memory=True, name="mine") as p:
        model = loop(p, 6)
    assert model.training
    data = json.loads(p.to_json())
    assert data["name"] == "mine" and data["format"] == 1
    assert data["sections"][2]["path"] == ["step", "forward"]
    assert data["verdict"]["text"]
    assert data["largest"][0]["allocation"]["line"]["code"]
    assert from_json(data).sections == p.report.sections
    files = p.save(tmp_path / "new" / "out")
    assert sorted(f.name for f in files) == ["profile.json", "trace.json.gz"]
    assert p.save(tmp_path / "again")[1].read_bytes() == files[1].read_bytes()
    names = {e.get("name") for e in json.loads(gzip.decompress(files[1].read_bytes()))["traceEvents"]}
    assert {"aten::addmm", "forward", "step"} <= names  # sections stand in the trace
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        p.save(tmp_path / "file")


def test_wrong_use() -> None:
    for wrong in ({"depth": 0}, {"active_steps": 0}, {"device": "tpu"}):
        with pytest.raises(OptionError):
            profile(**wrong)  # type: ignore[arg-type]
    p = profile()
    with pytest.raises(OptionError, match="after the `with` block"):
        p.show()
    with p:
        pass
    with pytest.raises(OptionError, match="once"), p:
        pass
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="CUDA"):
            profile(device="cuda")


def test_an_empty_block() -> None:
    with profile(depth=1) as p:
        pass
    out = io.StringIO()
    p.show(Console(file=out, width=80))
    assert p.report.sections == ()
    assert p.report.verdict is not None and p.report.verdict.bound == "not known"
    json.loads(p.to_json())


def test_timers_and_decorated_functions() -> None:
    with profile() as p:

        @p.section("work")
        def work() -> None:
            with p.timer("inner"):
                pass

        for _ in range(3):
            work()
    assert [(t.name, t.calls) for t in p.report.timers] == [("inner", 3)]
    assert p.report.sections[0].calls == 3


def test_commands_for_nsight_name_the_program() -> None:
    for command in nsight_commands("train.py --epochs 3"):
        assert command.endswith("python train.py --epochs 3")
        assert "nvtx" in command
    nsys, ncu = nsight_commands("-m whet profile t --nvtx", marked=True)
    assert "--capture-range=cudaProfilerApi" in nsys and "--profile-from-start=off" in ncu
