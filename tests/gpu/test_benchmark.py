"""The script that checks whet on a GPU: its table, its deadline, its JSON, and the wheels that it takes along."""

import importlib.util
import json
import re
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ABOUT = {
    "device": "cpu",
    "machine": {"chip": "a chip", "gpu": ""},
    "fingerprint": "abc",
    "versions": {"whet": "0.1.0", "torch": "2.13", "python": "3.12"},
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/gpu.py as a module; what it imports from beside itself goes with the test."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return _module("gpu", monkeypatch)


@pytest.fixture
def wheels(gpu: ModuleType) -> ModuleType:
    return gpu.gpu_wheels


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for known in ("gpu", "gpu_wheels"):
        monkeypatch.delitem(sys.modules, known, raising=False)
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


class Steps:
    """Functions of fake steps on a clock that they alone move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.limits: dict[str, float] = {}

    def run(self, function: str, arguments: dict[str, Any], limit_s: float) -> tuple[dict[str, Any] | None, str, str]:
        self.limits[function] = limit_s
        self.now += min(arguments["takes"], limit_s)
        if arguments["takes"] > limit_s:
            return None, f"took longer than its limit of {limit_s:g} s", ""
        match function:
            case "good":
                return {"sentence": "a fine\nresult " * 20, "figures": {"x": 1}}, "", ""
            case "wrong":
                return {"sentence": "2 of 3", "figures": {}, "ok": False}, "", ""
            case "extra":
                return None, "needs the package sklearn", "MissingExtra"
        return None, "RuntimeError: CUDA error: an illegal memory access was encountered", "RuntimeError"


def test_a_step_that_fails_is_a_row_and_never_the_end(gpu: ModuleType, tmp_path: Path) -> None:
    fake, out = Steps(), tmp_path / "results" / "gpu.json"
    steps = [
        gpu.Step(name, function, {"takes": takes}, limit_s=50, least_s=10)
        for name, function, takes in (
            ("one", "good", 20),
            ("two", "raises", 1),
            ("three", "hangs", 1000),
            ("four", "wrong", 1),
            ("five", "extra", 1),
            ("six", "last", 1000),
            ("seven", "late", 1),
        )
    ]
    seen = []

    def save(rows: Any) -> None:
        gpu._save(out, ABOUT, rows, steps)
        seen.append(json.loads(out.read_text())["is_complete"])

    rows = gpu.run_steps(steps, 200.0, fake.run, save, clock=lambda: fake.now)
    assert [row.status for row in rows] == ["ok", "failed", "failed", "failed", "skipped", "failed", "not begun"]
    assert fake.limits["hangs"] == 50
    assert fake.limits["last"] == 27  # what was left of 100 s
    assert "late" not in fake.limits
    assert fake.now == 200.0
    assert seen == [False] * 6 + [True]
    report = json.loads(out.read_text())
    assert [row["name"] for row in report["steps"]] == [step.name for step in steps]
    assert report["steps"][0]["figures"] == {"x": 1}
    assert report["versions"]["torch"] == "2.13"
    assert list(out.parent.iterdir()) == [out]
    lines = gpu.table(rows, ABOUT).splitlines()
    assert lines[0] == "whet 0.1.0 on the CPU standing in (a chip), torch 2.13, Python 3.12"
    assert len(lines) == 9
    assert len(lines[1]) <= 100
    assert lines[2].endswith("an illegal memory access was encountered")
    assert "needs 10 s" in lines[7]
    assert lines[-1] == "2 of 7 steps went well, in 100 s"


def test_the_figures_become_a_table_of_the_results(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"chip": "a chip", "gpu": "H100 (sm_90)", "gpu_driver": "550, CUDA 12.8"}
    rows = [{"name": "limits", "status": "ok", "sentence": "a | b"}, {"name": "x", "status": "failed", "sentence": "c"}]
    report = {**ABOUT, "device": "cuda", "machine": machine, "command": "python benchmarks/gpu.py", "steps": rows}
    lines = _module("results", monkeypatch)._gpu(report).splitlines()
    assert lines[0] == "## On a GPU: H100 (sm_90)"
    assert lines[-2:] == ["| limits | ok | a / b |", "| x | failed | c |"]


def test_every_step_of_the_plan_is_a_function_with_its_arguments(gpu: ModuleType) -> None:
    steps = _arguments_of(ROOT / "benchmarks" / "gpu_steps.py")
    for quick in (True, False):
        plan = gpu.plan("cuda", quick=quick)
        for step in plan:
            assert set(step.arguments) == steps[step.function], step.name
        assert len({step.name for step in plan}) == len(plan)
    names = [step.name for step in gpu.plan("cuda", quick=False)]
    wanted = {"limits", "profile", "watch", "monitor", "bench", "gate", "tests", "tune docs-gpt"}
    assert wanted <= set(names)


def _arguments_of(path: Path) -> dict[str, set[str]]:
    found = re.findall(r"^def (\w+)\((.*?)\) -> dict", path.read_text(), re.MULTILINE)
    return {name: {part.partition(":")[0].strip() for part in given.split(", ")} for name, given in found}


def test_without_a_gpu_it_says_so_before_anything(gpu: ModuleType, monkeypatch, capsys) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu.described("cuda")
    assert ended.value.code == 2
    assert "torch finds no CUDA device here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lacking", "said"),
    [("scipy", "scipy must be installed on the GPU machine"), ("optuna", "make gpu-wheels GPU_PYTHON=3.")],
)
def test_what_is_missing_is_said_before_anything(gpu: ModuleType, wheels, monkeypatch, capsys, lacking, said) -> None:
    monkeypatch.setattr(wheels, "find_spec", lambda module: None if module == lacking else object())
    monkeypatch.setattr(wheels, "unpack", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        gpu.prepare()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_wheels_are_all_that_core_and_the_tests_import(wheels: ModuleType) -> None:
    """Nothing that one of them requires on the GPU machine is left out but what it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {*wheels.CORE, *wheels.TESTS, *wheels.LEFT_OUT}
    queue = [*project["dependencies"], *wheels.TESTS]
    seen: set[str] = set()
    while queue:
        requirement = Requirement(queue.pop())
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in seen or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        assert name in known, f"{name} is missing in benchmarks/gpu_wheels.py"
        if name not in wheels.LEFT_OUT:
            try:
                queue += requires(name) or []
            except PackageNotFoundError:
                pytest.skip(f"{name} is not installed here")
    assert seen >= {*wheels.CORE, *wheels.TESTS} - {"greenlet"}  # SQLAlchemy's, where it runs on asyncio


def test_wheels_are_unpacked_once_and_for_their_own_python(wheels: ModuleType, tmp_path: Path) -> None:
    places = tmp_path, tmp_path / "unpacked"
    assert wheels.unpack(*places) is None
    own = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for name in ("pure-1.0-py3-none-any", "stable-1.0-cp38-abi3-manylinux_2_28_x86_64", f"exact-1.0-{own}-{own}-any"):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as archive:
            archive.writestr(f"{name.partition('-')[0]}.py", "X = 1\n")
    site = wheels.unpack(*places)
    assert {path.name for path in site.glob("*.py")} == {"pure.py", "stable.py", "exact.py"}
    (site / "pure.py").write_text("X = 2\n")
    assert wheels.unpack(*places) == site
    assert (site / "pure.py").read_text() == "X = 2\n"
    (tmp_path / "other-1.0-cp39-cp39-manylinux_2_28_x86_64.whl").write_bytes(b"")
    with pytest.raises(ValueError, match=r"is for cp39, and this Python is .* make gpu-wheels GPU_PYTHON"):
        wheels.unpack(*places)


def test_a_step_runs_in_a_process_of_its_own(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpu_steps.py").write_text(
        "import time\ndef good(x): return {'sentence': str(x), 'figures': {}}\ndef hangs(): time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'src'}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gpu_steps", raising=False)
    run = gpu.isolated(tmp_path / "scratch")
    assert run("good", {"x": 3}, 60.0) == ({"sentence": "3", "figures": {}}, "", "")
    value, failed, kind = run("hangs", {}, 3.0)
    assert (value, kind) == (None, "")
    assert "took longer" in failed
    with pytest.raises(AttributeError, match="absent"):
        run("absent", {}, 60.0)
