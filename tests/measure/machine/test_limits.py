"""The measured limits: sane against an independent measurement, kept once, measured again when damaged."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import MachineError
from whet.measure.machine import Limits, Machine, describe, gemm, load_limits, measure_limits

FOUND = Limits(
    read_bandwidth=30e9,
    gemm={"float32": 1e12, "bfloat16": 5e12},
    cached_bandwidth=((2**18, 300e9), (2**20, 200e9), (2**22, 50e9)),
    operator_s=1e-6,
    notes=("a note",),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that were measured."""
    devices: list[str] = []

    def measure(machine: Machine, *, device: str) -> Limits:
        devices.append(device)
        return replace(FOUND, device=device)

    monkeypatch.setattr("whet.measure.machine.limits.measure_limits", measure)
    monkeypatch.setattr("whet.measure.machine.limits._probe", lambda machine: (0.9e12, True))
    return devices


def test_measures_this_machine() -> None:
    num_threads = torch.get_num_threads()
    found = measure_limits(describe(), buffer_bytes=2**24, shapes=((256, 256, 256), (512, 512, 512)), budget_s=0.2)
    assert torch.get_num_threads() == num_threads
    a = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    by_numpy = 2 * 512**3 / best
    assert by_numpy / 20 < found.gemm["float32"] < by_numpy * 20  # another library, perhaps fewer threads
    assert {"float32", "bfloat16"} <= set(found.gemm) <= set(gemm.DTYPES)
    assert 1e-8 < found.operator_s < 1e-3
    assert found.device == "cpu"
    assert found.read_bandwidth > 1e8


def test_dtypes_that_torch_cannot_multiply_are_absent() -> None:
    found = gemm.gemm_peaks(("float32", "bool"), ((64, 64, 64),), budget_s=0.01)
    assert set(found) == {"float32"}


def test_each_way_to_multiply_ends_at_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, list[tuple[int, int, int]]] = {"slow": [], "fast": []}

    def way(name: str, seconds: float) -> Any:
        def make(dtype: str, shape: tuple[int, int, int], device: str) -> Any:
            def run() -> None:
                calls[name].append(shape)
                time.sleep(seconds)

            return run

        return make

    monkeypatch.setattr(gemm, "_multiplication", way("slow", 0.01))
    monkeypatch.setattr(gemm, "_packed", lambda *what: [way("fast", 0.0)(*what)])
    small, large = (64, 64, 64), (1024, 1024, 1024)
    found = gemm.gemm_peaks(("int8",), (small, large), budget_s=0.02)
    assert set(calls["slow"]) == {small}, "10 ms for 64 cubed would be 41 s for 1024 cubed"
    assert set(calls["fast"]) == {small, large}
    assert found["int8"] > 2 * 1024**3 / 0.1


def test_an_int8_product_through_onednn_counts() -> None:
    ways = gemm._packed("int8", (8, 16, 32), "cpu")
    if not ways:
        pytest.skip("oneDNN has no int8 product on this chip")
    product_MN = ways[0]()
    assert product_MN.shape == (8, 16) and product_MN.dtype == torch.float32
    # rows and columns are equal, and a whole number: products of integers, neither saturated nor scaled
    assert torch.equal(product_MN, product_MN[:1, :1].round().expand(8, 16))
    assert gemm._packed("int8", (8, 16, 32), "cuda") == []


def test_a_slow_dtype_is_not_tried_on_large_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def slow(dtype: str, shape: tuple[int, int, int], device: str) -> object:
        tried.append(shape)
        return lambda: time.sleep(0.01)

    monkeypatch.setattr(gemm, "_multiplication", slow)
    monkeypatch.setattr(gemm, "_packed", lambda *_: [])  # fast where the chip knows float16
    # 10 ms for 64 cubed is 52 MFLOP/s: 1024 cubed would take 41 s
    found = gemm.gemm_peaks(("float16",), ((64, 64, 64), (1024, 1024, 1024)), budget_s=0.05)
    assert tried == [(64, 64, 64)]
    assert found["float16"] <= 2 * 64**3 / 0.01


def test_a_measurement_is_kept(cache: Path, calls: list[str]) -> None:
    machine = describe()
    assert load_limits(machine) == FOUND
    assert load_limits(machine) == FOUND
    assert calls == ["cpu"]
    load_limits(machine, device="cuda")
    load_limits(replace(machine, chip="another"))
    load_limits(machine, refresh=True)
    assert calls == ["cpu", "cuda", "cpu", "cpu"]
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: text.replace('"format": 4', '"format": 9').replace('"format":4', '"format":9'),
        lambda text: json.dumps(json.loads(text) | {"limits": {"read_bandwidth": -1.0}}),
        lambda text: json.dumps(json.loads(text) | {"limits": {"read_bandwidth": "fast"}}),
        lambda text: json.dumps(json.loads(text) | {"fingerprint": "of another"}),
        lambda text: "\udcff",
    ],
)
def test_a_damaged_file_is_replaced(cache: Path, calls: list[str], damage: object) -> None:
    machine = describe()
    load_limits(machine)
    (path,) = cache.iterdir()
    damaged = damage(path.read_text())  # type: ignore[operator]
    path.write_bytes(damaged.encode(errors="surrogateescape"))
    assert load_limits(machine) == FOUND
    assert calls == ["cpu", "cpu"]
    assert load_limits(machine) == FOUND
    assert calls == ["cpu", "cpu"]


def test_a_cache_that_cannot_be_written_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("WHET_CACHE", str(blocker / "below"))
    assert load_limits(describe()) == FOUND
    assert "cannot be kept" in caplog.text


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(MachineError, match="'tpu'"):
        measure_limits(describe(), device="tpu")
    if not describe().has_cuda:
        with pytest.raises(MachineError, match="CUDA"):
            measure_limits(describe(), device="cuda")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_limits_are_positive_and_finite(value: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Limits(read_bandwidth=value)
    with pytest.raises(ValueError, match="positive"):
        Limits(read_bandwidth=1e9, gemm={"float32": value})


@pytest.mark.parametrize(
    ("working_set", "expected"),
    [(0, 300e9), (2**18, 300e9), (2**19, 300e9), (2**20, 200e9), (2**22, 50e9), (2**23, 50e9), (2**23 + 1, 30e9)],
)
def test_bandwidth_by_working_set(working_set: int, expected: float) -> None:
    assert FOUND.bandwidth(working_set) == expected
    assert Limits(read_bandwidth=30e9).bandwidth(working_set) == 30e9


def test_a_refresh_keeps_the_best(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    load_limits(describe())
    busy = Limits(
        read_bandwidth=20e9,
        gemm={"float32": 2e12, "int8": 8e12},
        cached_bandwidth=((2**18, 100e9), (2**20, 250e9), (2**22, 40e9)),
        operator_s=9e-7,
        notes=("busy",),
    )
    monkeypatch.setattr("whet.measure.machine.limits.measure_limits", lambda machine, device: busy)
    expected = Limits(
        read_bandwidth=30e9,
        gemm={"float32": 2e12, "int8": 8e12, "bfloat16": 5e12},
        cached_bandwidth=((2**18, 300e9), (2**20, 250e9), (2**22, 50e9)),
        operator_s=9e-7,
        notes=("busy",),
    )
    assert load_limits(describe(), refresh=True) == expected
    assert load_limits(describe()) == expected
    assert busy.best_of(replace(FOUND, notes=())).notes == ()
    assert busy.best_of(busy) == replace(busy, cached_bandwidth=((2**18, 250e9), (2**20, 250e9), (2**22, 40e9)))


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_larger_sets_are_never_faster(a: float, b: float) -> None:
    assert FOUND.bandwidth(min(a, b)) >= FOUND.bandwidth(max(a, b)) >= FOUND.read_bandwidth


def test_a_dtype_that_was_not_measured_is_taken_at_its_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FOUND.peak("bfloat16") == 5e12
    assert FOUND.peak("float16") == 2e12
    assert FOUND.peak("int8") == 4e12
    slow = replace(FOUND, gemm={"float32": 1e12, "bfloat16": 2e11, "int8": 3e10})  # torch's int8 without VNNI
    monkeypatch.setattr("whet.measure.machine.limits._IS_X86", True)
    assert (slow.peak("int8"), slow.faster("int8"), slow.faster("bfloat16")) == (2e12, "int8", "float32")
    assert replace(slow, device="cuda").peak("int8") == 3e10
    monkeypatch.setattr("whet.measure.machine.limits._IS_X86", False)
    assert (slow.peak("int8"), slow.faster("int8")) == (3e10, "float32")
    assert FOUND.peak("float64") == 1e12


@pytest.mark.gpu
def test_measures_the_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = measure_limits(describe(), device="cuda", budget_s=0.2)
    x = torch.ones(2**28, device="cuda")
    x.sum()
    torch.cuda.synchronize()
    start = time.perf_counter()
    x.sum()
    torch.cuda.synchronize()
    assert found.read_bandwidth > 2**30 / (time.perf_counter() - start) / 10
    assert found.gemm["bfloat16"] > found.gemm["float32"]


@pytest.mark.parametrize(
    ("reached", "is_quiet", "times"),
    [
        (0.9e12, True, 1),
        (0.3e12, True, 1),  # a probe takes no time to find its best
        (1.3e12, True, 2),  # the record is of a busy machine
        (1.3e12, False, 2),
        (0.1e12, True, 2),  # the record is of another machine
        (0.1e12, False, 1),  # this machine is busy now
    ],
)
def test_a_record_that_a_probe_contradicts_is_measured_anew(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], reached: float, is_quiet: bool, times: int
) -> None:
    machine = describe()
    load_limits(machine)
    monkeypatch.setattr("whet.measure.machine.limits._probe", lambda machine: (reached, is_quiet))
    load_limits(machine)
    assert len(calls) == times


def test_what_a_slower_machine_reaches_replaces_the_record(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    machine = describe()
    load_limits(machine)
    slower = replace(FOUND, gemm={"float32": 0.1e12})
    monkeypatch.setattr("whet.measure.machine.limits._probe", lambda machine: (0.1e12, True))
    monkeypatch.setattr("whet.measure.machine.limits.measure_limits", lambda machine, *, device: slower)
    assert load_limits(machine) == slower


def test_a_record_of_a_busy_machine_is_provisional(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def measure(machine: Machine, *, device: str) -> Limits:
        taken.append(device)
        is_first = len(taken) == 1
        return replace(FOUND, gemm={"float32": 0.5e12 * len(taken)}, busy="others had a core" if is_first else "")

    monkeypatch.setattr("whet.measure.machine.limits.measure_limits", measure)
    monkeypatch.setattr("whet.measure.machine.limits._probe", lambda machine: (0.4e12, False))
    machine = describe()
    monkeypatch.setenv("WHET_PRETENDED_LOAD", "1.5")
    assert load_limits(machine).busy
    assert load_limits(machine).busy
    assert len(taken) == 1  # still busy: nothing better is to be had
    monkeypatch.setenv("WHET_PRETENDED_LOAD", "0")
    found = load_limits(machine)
    assert (found.busy, found.gemm["float32"]) == ("", 1e12)
    assert load_limits(machine) == found
    assert len(taken) == 2


def test_load_during_the_measurement_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_PRETENDED_LOAD", "1.5")
    found = measure_limits(describe(), buffer_bytes=2**24, shapes=((256, 256, 256),), budget_s=0.2)
    assert found.busy.startswith("other processes used 1.5 of")
    assert any("may be too low" in note for note in found.notes)


def test_dtypes_are_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def multiplication(dtype: str, shape: tuple[int, int, int], device: str) -> object:
        order.append((shape[0], dtype))
        return lambda: None

    monkeypatch.setattr(gemm, "_multiplication", multiplication)
    monkeypatch.setattr(gemm, "_packed", lambda *_: [])
    gemm.gemm_peaks(("float32", "bfloat16"), ((64, 64, 64), (128, 128, 128)), budget_s=0.01)
    assert order == [(64, "float32"), (64, "bfloat16"), (128, "float32"), (128, "bfloat16")]
