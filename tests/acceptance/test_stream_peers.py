"""The sides and the sums of benchmarks/stream_peers.py: the same frames, tables and verdicts from made-up figures."""

import importlib
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from whet.models.diffusion.unet import UNetConfig, load_unet
from whet.streamer.sources.synthetic import SyntheticClip

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("goals", "stream_tables", "stream_variants", "stream_shaped", "stream_worker", "stream_guide")
TINY = UNetConfig(frame_size=32, grey_size=8, widths=(16, 24), embedding=32)
NUM_FRAMES = 6
MOST_APART = 8  # levels of 256, after 6 frames: one level in the first frame is fed back through a random U-Net

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the scripts' modules, as attributes of one. They import each other as scripts do."""
    pytest.importorskip("diffusers")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = ModuleType("bench")
    for name in MODULES:
        setattr(found, name, importlib.import_module(name))
    return found


@pytest.fixture
def directory(bench: ModuleType, tmp_path: Path) -> Path:
    written: Path = bench.stream_variants.write_random_unet(tmp_path / "unet", TINY)
    return written


def noises(steps: int) -> Iterator[Tensor]:
    """Yield the noise of whet's stream with seed 0, in the order in which a loop over each frame's steps draws it."""
    drawn = torch.randn(steps, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return itertools.cycle([drawn[0, 0][None], *(drawn[step, 1][None] for step in range(steps - 1))])


def frames_of(loop: Any) -> list[np.ndarray]:
    return [loop(frame.image).astype(int) for frame in SyntheticClip(NUM_FRAMES, size=(32, 32))]


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_sides_make_the_same_frames(
    bench: ModuleType, directory: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants, unet = bench.stream_variants, load_unet(directory)
    with bench.stream_variants.SIDES[variants.STREAM](directory).open(
        steps, lambda size: SyntheticClip(NUM_FRAMES, size=size)
    ) as stream:
        ours = [answer.image.astype(int) for answer in stream]
    assert len(ours) == NUM_FRAMES and np.std(ours) > 10  # pictures, not one colour

    drawn = noises(steps)
    scheduler = importlib.import_module("diffusers.schedulers.scheduling_lcm")
    monkeypatch.setattr(scheduler, "randn_tensor", lambda shape, **_: next(drawn))
    theirs = frames_of(variants.DiffusersLoop(unet, steps, lambda shape: next(drawn)))

    def infer(inputs: list[np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            return [unet(*(torch.as_tensor(np.asarray(x)) for x in inputs)).numpy()]

    again = noises(steps)
    compiled = SimpleNamespace(create_infer_request=lambda: SimpleNamespace(infer=infer))
    plain = frames_of(variants.OpenVINOLoop(compiled, TINY, steps, lambda shape: next(again)))
    for peer in (theirs, plain):
        apart = [np.abs(one - other) for one, other in zip(ours, peer, strict=True)]
        assert apart[0].max() <= 1  # float32 sums in another order, rounded to another level at most
        assert max(frame.max() for frame in apart) <= MOST_APART and np.mean(apart) < 0.25


@pytest.mark.parametrize("side", ["diffusers, eager", "whet stream, rolling batch"])
def test_a_side_answers_a_turn(bench: ModuleType, directory: Path, side: str) -> None:
    worker = bench.stream_worker
    opened = worker.open_side("frames", directory, side)
    found = worker.perform(opened, {"do": "turn", "steps": 2, "num_frames": 4})
    assert all(math.isfinite(value) for value in found.values()) and found["s_per_frame"] > 0
    assert ("overhead" in found) == side.startswith("whet")
    if "overhead" in found:
        assert 0 < found["overhead"] <= found["with_hand_over"]  # each holds what the one before it holds


def test_a_stream_is_held_and_its_memory_read(bench: ModuleType, directory: Path) -> None:
    worker, tables = bench.stream_worker, bench.stream_tables
    side = worker.open_side("frames", directory, bench.stream_variants.STREAM)
    report = worker.perform(side, {"do": "hold", "steps": 1, "rate": 50.0, "seconds": 0.2})
    assert report["counts"]["arrived"] == 10 and report["budget_s"] == 0.02
    assert tables.why_not_held(report) != ""  # 10 frames prove nothing
    readings = worker.perform(side, {"do": "memory", "steps": 1, "num_frames": 20})
    assert list(readings) == [str(2 * number) for number in range(1, 11)]
    assert min(readings.values()) > 2**20


@pytest.mark.slow
def test_pipelines_of_either_side_make_frames(bench: ModuleType, tmp_path: Path) -> None:
    shaped = bench.stream_shaped
    pipeline = shaped.write_pipeline(tmp_path, (32, 64), 64)
    for build in shaped.SHAPED_SIDES.values():  # diffusers' side raises where it calls its U-Net more or less often
        assert build(pipeline).turn(steps=2, num_frames=1)["s_per_frame"] > 0


def test_the_guides_claims_are_measured_on_a_processor(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = bench.stream_guide
    monkeypatch.setattr(guide, "_ROUNDS", 2)
    monkeypatch.setattr(guide, "_CALLS", 1)
    found = json.loads(json.dumps(guide.measure("cpu", (32, 64), 64)))
    assert set(found["seconds"]) == {"naive", "fast"} and set(found["absent"]) == {"graph", "TensorRT"}
    weights = sum(x.nbytes for x in guide.naive_unet((32, 64), 8, "cpu").parameters())
    assert found["memory"]["naive"] is None or weights <= found["memory"]["naive"] < 20 * weights
    verdicts = [row["verdict"] for row in bench.stream_tables.judge_guide(found)]
    assert len(verdicts) == 5 and verdicts[2:] == ["not measurable here"] * 3


def test_naive_and_fast_are_one_network(bench: ModuleType) -> None:
    guide = bench.stream_guide
    naive = guide.naive_unet((32, 64), 8, "cpu")
    fast = guide.fast_unet(naive).float()
    torch.manual_seed(1)
    sample, prompt = torch.randn(1, 4, 8, 8), torch.randn(1, 77, 768)
    with torch.no_grad():
        one, other = (unet(sample, 499, prompt, return_dict=False)[0] for unet in (naive, fast))
    torch.testing.assert_close(one, other, rtol=0, atol=0.02)  # its weights are rounded to float16
    assert one.std() > 0.1


def test_a_claim_of_the_guide_has_the_verdict_of_its_figures(bench: ModuleType) -> None:
    judge = bench.stream_tables.judge_guide
    found: dict[str, Any] = {
        "memory": {"naive": 1000, "fast": 500},
        "seconds": {"naive": [0.002] * 6, "fast": [0.001] * 6, "graph": [0.0001] * 6},
        "absent": {"TensorRT": "it is not installed"},
    }
    rows = judge(found)
    verdicts = [row["verdict"] for row in rows]
    assert verdicts == ["holds", "does not hold", "does not hold", "holds", "not measurable here"]
    assert "2.00x" in rows[0]["measured"] and "50.0% less" in rows[1]["measured"]
    assert "2,500 final frames/s at 4 steps; 10,000 passes" in rows[2]["measured"]
    assert "3.60 ms" in rows[3]["measured"] and rows[4]["measured"] == "it is not installed"
    found["seconds"] |= {"naive": [0.0015] * 6, "graph": [0.00005] * 6, "TensorRT": [0.0005] * 6}
    found["memory"] = {"naive": 1000, "fast": 10}
    assert [row["verdict"] for row in judge(found)] == ["does not hold", "holds", "holds", "holds", "holds"]
    found["seconds"]["fast"] = [0.0005, 0.001] * 3  # 1.5 and 3 times as fast, in turns
    assert judge(found)[0]["verdict"] == "open"


def made_up_rounds(tables: Any) -> list[dict[str, Any]]:
    def of(*times: float) -> dict[str, Any]:
        names = (tables.DIFFUSERS, tables.OPENVINO, "whet stream")
        found: dict[str, Any] = {name: {"s_per_frame": time} for name, time in zip(names, times, strict=True)}
        found["whet stream"] |= {"overhead": 0.02, "with_hand_over": 0.06}
        return found

    return [{"1": of(0.04, 0.012, 0.01), "4": of(0.16, 0.02, 0.04)} for _ in range(6)]


def test_goals_are_judged_by_the_whole_interval(bench: ModuleType) -> None:
    tables = bench.stream_tables
    assert [bench.goals.verdict(*interval, 3.0) for interval in [(3, 4), (2, 4), (2, 2.9)]] == [
        "reached",
        "open",
        "missed",
    ]
    found = {claim["what"]: (claim["ratio"], claim["verdict"]) for claim in tables.judge_pairs(made_up_rounds(tables))}
    assert found == {
        f"whet stream, 1 step, over {tables.DIFFUSERS}": (pytest.approx(4), "reached"),
        f"whet stream, 1 step, over {tables.OPENVINO}": (pytest.approx(1.2), "reached"),
        f"whet stream, 4 steps, over {tables.DIFFUSERS}": (pytest.approx(4), "reached"),
        f"whet stream, 4 steps, over {tables.OPENVINO}": (pytest.approx(0.5), "missed"),
    }
    assert [row["verdict"] for row in tables.judge_overhead(made_up_rounds(tables))] == ["reached", "reached"]


def held(**fields: Any) -> dict[str, Any]:
    spread = {"p50": 0.010, "p90": 0.011, "p99": 0.012}
    report = {
        "verdict": "missed",
        "budget_s": 0.016,
        "frame": spread,
        "model": spread,
        "latency": spread,
        "busy": "",
        "levels": [],
        "ended_at": "1 step",
        "late_share": 0.002,
        "counts": {"dropped": 3},
    }
    return report | fields


def test_a_rate_that_is_not_held_has_a_reason(bench: ModuleType) -> None:
    why = bench.stream_tables.why_not_held
    slow = {"p50": 0.020, "p90": 0.021, "p99": 0.022}
    assert why(held(verdict="held")) == ""
    assert "busy: git used 1.0 cores" in why(held(verdict="inconclusive", busy="git used 1.0 cores"))
    assert why(held(verdict="inconclusive")) == "too few frames"
    assert "model alone takes 20.0 ms" in why(held(model=slow, frame=slow))
    assert "2 times, and ended at 1 step" in why(held(levels=[[4, "2 steps"], [9, "1 step"]]))
    assert "one call of the model in 100" in why(held(model=slow | {"p50": 0.01}))
    assert "work around the model" in why(held(frame=slow | {"p50": 0.01}))
    assert why(held()) == "0.20% of the frames were late or dropped (3 dropped)"


def test_memory_is_constant_where_it_grows_by_a_hundredth_at_most(bench: ModuleType) -> None:
    judge = bench.stream_tables.judge_memory
    constant = judge({"10000": 402_000_000, "1000": 400_000_000})
    assert (constant["from"], constant["to"], constant["verdict"]) == (1000, 10_000, "reached")
    assert judge({"1000": 400_000_000, "10000": 410_000_000})["verdict"] == "missed"


def test_the_table_shows_what_was_measured(bench: ModuleType) -> None:
    tables = bench.stream_tables
    report = {
        "machine": {"chip": "a chip"},
        "weights": "random, from seed 0",
        "pairs": {"rounds": made_up_rounds(tables)},
        "holds": [{"rate": 62.5, "steps": 1, "side": "whet stream", "seconds": 600, "report": held()}],
        "memory": {"side": "whet stream", "readings": {"1000": 400_000_000, "10000": 400_000_000}},
        "shaped": {
            "widths": [32, 64],
            "pixels": 64,
            "steps": 1,
            "sides": ["theirs", "ours"],
            "rounds": [{"theirs": {"s_per_frame": 2.0}, "ours": {"s_per_frame": 1.0}}] * 3,
        },
        "guide": [
            {
                "device": "the processor",
                "memory": {"naive": 1000, "fast": None},
                "seconds": {"naive": [2.0] * 6, "fast": [1.0] * 6},
                "absent": {"graph": "no CUDA", "TensorRT": "no CUDA"},
            }
        ],
    }
    text = "\n".join(tables.stream_lines(json.loads(json.dumps(report))))
    assert text.startswith("## Real-time diffusion beside diffusers and OpenVINO, on a chip\n")
    assert "| whet stream | 100.0 | 25.0 |" in text
    assert "| whet stream, 4 steps, over OpenVINO int8, plain loop | 1.1x | **0.50x** (0.50–0.50) | missed |" in text
    assert "| whet stream | 1 | **2.0%** (2.0% to 2.0%) | reached | 6.0% |" in text
    assert "| 62.5 FPS | 1 | whet stream | 600 s | 10.0 ms | 12.0 ms | 12.0 ms | 0.20% | 0 | missed: 0.20%" in text
    assert "400.0 and 400.0 MB, +0.00% (+0 bytes a frame)" in text
    assert "theirs 0.5 FPS, ours 1 FPS, **2.00x** (2.00–2.00)" in text
    assert "| 98.4 % less memory by the same | not measurable here | the system does not tell the peak |" in text
    assert "Real-time" in "\n".join(tables.stream_lines({"machine": {"chip": "x"}, "weights": "w"}))
