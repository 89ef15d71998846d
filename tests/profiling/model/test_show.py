"""What stands on the terminal: it fits 80 columns, and says what was found."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from whet.measure.source_location import Line
from whet.profiling.bounds import Bound
from whet.profiling.model.allocations import Allocation, LineUse, TensorMemory
from whet.profiling.model.leaks import Leak
from whet.profiling.model.operators import OperatorCost, Operators
from whet.profiling.model.referrers import LiveTensor
from whet.profiling.model.report import Latency, LayerLine, Report, as_json, from_json
from whet.profiling.model.sections import SectionCost, TimerCost
from whet.profiling.model.show import folded_sections, show_report
from whet.profiling.model.timeline import Fragmentation, MemoryPoint, MemoryUse
from whet.profiling.model.verdict import Hint, ProfileVerdict

LONG = "a_module_with_a_very_long_name.and_another_inside_of_it.attention.self_attention_layer.query_projection"
LINE = Line(f"/somewhere/{LONG}/{LONG}.py", 12345, LONG)


def section(*path: str, total_s: float = 1.0, gpu_s: float | None = None) -> SectionCost:
    return SectionCost(
        path, 1_234_567, total_s, total_s / 2, total_s, total_s, total_s / 2, gpu_s, -5_000_000, 8 * 10**9
    )


def full(gpu: bool = True) -> Report:
    gpu_s = 0.5 if gpu else None
    allocation = Allocation(4 * 10**9, (1024, 1024, 1024), "float32", "cuda", LINE, 3, False, 1)
    kind = "TransformerEncoderLayer"
    layer = LayerLine(LONG, kind, 1, 0.123456, 10**12, 10**10, 123.4, Bound.BANDWIDTH, 0.1234)
    operator = OperatorCost(LONG, "[1024, 1024] " * 9, 123456, 1.5, 2.5, gpu_s, gpu_s)
    points = tuple(MemoryPoint(i / 10, i * 10**6) for i in range(500))
    device = "cuda" if gpu else "cpu"
    return Report(
        name="x",
        partial=f"the model raised {LONG}: \x1b[31mred[/red]",
        verdict=ProfileVerdict(Bound.OVERHEAD, (f"Because of {LONG}.", "More."), 0.0123, (Hint("bf16", 2.0),)),
        wall_s=12.5,
        num_steps=7,
        latency=Latency(1234.5, 2345.6, 3456.7, 12345, 123456.7, 31.9),
        layers=tuple(replace(layer, name=f"{LONG}.{i}") for i in range(30)),
        call_s=4.0,
        sections=(section("a", gpu_s=gpu_s), section("a", LONG, gpu_s=gpu_s)),
        timers=(TimerCost(LONG, 1_000_000, 123.0, 0.0123, 1.23, None),),
        operators=Operators((operator,) * 20, 9.0, 8.0, gpu_s),
        memory=MemoryUse(device, 10**8, 2 * 10**9, 3 * 10**9, True, points),
        tensors=TensorMemory(0, 10**9, 2 * 10**9, tuple(LineUse(LINE, 10**9, 12) for _ in range(9))),
        largest=(LiveTensor(allocation), LiveTensor(allocation, f"Model.{LONG}", 12)),
        leaks=(Leak(LINE, "float32[1024, 1024]", 4e6, 10, 4 * 10**7, 10, 10, "the list 'losses'", True),),
        fragmentation=Fragmentation(10**9, 5 * 10**8, 4 * 10**8, 10**8, 12),
        notes=(f"a note of {LONG}",),
        commands=(f"nsys profile {LONG} {LONG}",),
    )


def shown(report: Report, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    show_report(console, report)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("gpu", [False, True])
def test_it_fits(width: int, gpu: bool) -> None:
    lines = shown(full(gpu), width)
    assert max(map(cell_len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "\x1b" not in text
    assert lines[1].startswith("PARTIAL")
    assert "OVERHEAD-BOUND, at 1.2% of the machine's limit" in text
    for part in (
        "sections",
        "timers",
        "layers, one call",
        "slowest operators",
        "largest tensors",
        "GROWS 4.00 MB a call",
    ):
        assert part in text, part
    assert "and 18 more layers" in text
    assert "75% of the free memory is outside this block" in text
    assert "losses" in text


def test_figures_are_never_cut() -> None:
    for line in shown(full()):
        if " Tr" in line:  # the layers' rows
            assert "123 ms" in line and "10.0 GB" in line and "bandwidth" in line and "12%" in line


def test_layers_are_told_apart_by_the_end_of_their_names() -> None:
    names = [f"model.layers.{i}.mlp.{part}_proj" for i in range(3) for part in ("gate", "up", "down")]
    layer = replace(full().layers[0], kind="Linear")
    lines = shown(Report(name="x", layers=tuple(replace(layer, name=name) for name in names)))
    assert all(any(f".{name.split('.', 2)[2]} " in line for line in lines) for name in names)


def test_shapes_of_four_dimensions_are_read_in_80_columns() -> None:
    cost = OperatorCost("mkldnn_convolution", "[8, 256, 14, 14] [256, 256, 3, 3]", 12, 0.1, 0.1)
    text = "\n".join(shown(Report(name="x", operators=Operators((cost,), 1.0, 1.0))))
    assert "8×256×14×14 256×256×3×3" in text


def test_an_empty_report_says_little_and_does_not_fail() -> None:
    assert len(shown(Report(name="x"))) <= 3


def test_a_report_survives_json() -> None:
    report = full()
    again = from_json(as_json(report))
    assert again.memory is not None and report.memory is not None
    assert len(again.memory.points) <= 400
    assert max(p.rss_bytes for p in again.memory.points) == max(p.rss_bytes for p in report.memory.points)
    assert again.memory.points[-1] == report.memory.points[-1]
    assert again.leaks == report.leaks
    assert again.layers == report.layers
    assert shown(again)[:10] == shown(report)[:10]


def test_modules_of_a_list_are_folded() -> None:
    sections = [
        section("m"),
        *(s for i in range(3) for s in (section("m", f"layers.{i}"), section("m", f"layers.{i}", "mlp"))),
    ]
    folded = folded_sections([*sections, section("m", "blocks.0")])
    assert [(s.path, s.total_s) for s in folded] == [
        (("m",), 1.0), (("m", "layers.* ×3"), 3.0), (("m", "layers.*", "mlp"), 3.0), (("m", "blocks.0"), 1.0),
    ]  # fmt: skip


def test_where_there_are_many_sections_the_small_ones_are_left_out() -> None:
    many = [section("m", total_s=10.0), *(section("m", f"part{chr(97 + i)}", total_s=0.01) for i in range(26))]
    text = "\n".join(shown(Report(name="x", sections=tuple(many))))
    assert "and 26 sections with less than 1% of the time each" in text
