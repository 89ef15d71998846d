"""The script that checks whet on a GPU: its table, its deadline, its JSON, and the wheels that it takes along."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import asdict
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
    for known in ("gpu", "gpu_wheels", "gpu_plan", "gpu_results", "gpu_table"):
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


def test_a_step_that_fails_is_a_row_and_never_the_end(gpu: ModuleType, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gpu.gpu_results, "RESULTS", tmp_path / "none.json")
    fake, out = Steps(), tmp_path / "results" / "gpu.json"
    known = {"group": "all", "commit": "c0ffee00", "written_at": "2026-11-26T00:00:00+00:00", **ABOUT}
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
        done = {"is_complete": len(rows) == len(steps), "steps": [asdict(row) for row in rows]}
        gpu.gpu_results.save([out], {**known, **done})
        seen.append(json.loads(out.read_text())["runs"][-1]["is_complete"])

    rows = gpu.run_steps(steps, 200.0, fake.run, save, clock=lambda: fake.now)
    assert [row.status for row in rows] == ["ok", "failed", "failed", "failed", "skipped", "failed", "not begun"]
    assert fake.limits["hangs"] == 50
    assert fake.limits["last"] == 27  # what was left of 100 s
    assert "late" not in fake.limits
    assert fake.now == 200.0
    assert seen == [False] * 6 + [True]
    report = json.loads(out.read_text())["runs"][-1]
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


def _run(group: str, date: str, commit: str, found: str = "", **more: Any) -> dict[str, Any]:
    machine = {"chip": "a chip", "gpu": "H100 (sm_90)", "gpu_driver": "550, CUDA 12.8"}
    return {
        **ABOUT,
        "device": "cuda",
        "machine": machine,
        "command": f"python benchmarks/gpu.py --group {group}",
        "group": group,
        "commit": commit,
        "written_at": f"{date}T10:00:00+00:00",
        "is_complete": True,
        "steps": [{"name": "limits", "status": "ok", "sentence": found}],
        **more,
    }


def test_the_figures_become_a_table_of_the_results(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [_run("measure", "2026-11-25", "old", "before"), _run("measure", "2026-11-26", "new", "a | b")]
    lines = _module("gpu_table", monkeypatch).gpu_lines(
        {"runs": [*runs, _run("tests", "2026-11-25", "old", "c", is_complete=False)]}
    )
    assert [line for line in lines if line.startswith("###")] == [
        "### tests, 2026-11-25, commit old",
        "### measure, 2026-11-26, commit new",
    ]
    assert "| limits | ok | a / b |" in lines
    assert not any("before" in line for line in lines)
    assert sum("the run was cut off" in line for line in lines) == 1
    assert any("H100 (sm_90); torch 2.13, Python 3.12, driver and runtime 550, CUDA 12.8" in line for line in lines)


def test_runs_are_merged_by_group_date_and_commit(gpu: ModuleType, tmp_path: Path, monkeypatch) -> None:
    results, out = gpu.gpu_results, tmp_path / "out" / "gpu.json"
    monkeypatch.setattr(results, "RESULTS", tmp_path / "published.json")
    results.save([results.RESULTS], _run("tests", "2026-11-25", "a"))
    for run in (
        _run("tune", "2026-11-25", "a"),
        _run("tests", "2026-11-26", "a"),
        _run("tests", "2026-11-26", "b"),
        _run("tests", "2026-11-26", "b", "again"),
    ):
        results.save([out], run)
    runs = results.read(out)  # it began with the published ones
    assert [results.key_of(run) for run in runs] == [
        ("tests", "2026-11-25", "a"),
        ("tune", "2026-11-25", "a"),
        ("tests", "2026-11-26", "a"),
        ("tests", "2026-11-26", "b"),
    ]
    assert runs[-1]["steps"][0]["sentence"] == "again"


def test_the_published_runs_can_be_read(gpu: ModuleType) -> None:
    runs = gpu.gpu_results.read()
    assert {run["group"] for run in runs} <= set(gpu.GROUPS)
    assert len({gpu.gpu_results.key_of(run) for run in runs}) == len(runs)
    assert runs


def test_the_group_that_was_run_longest_ago_comes_first(gpu: ModuleType) -> None:
    runs = [_run("tune", "2026-11-26", "a"), _run("tests", "2026-11-27", "b"), _run("tests", "2026-11-20", "a")]
    assert gpu.by_age(runs)[-2:] == ["tune", "tests"]
    assert sorted(gpu.by_age(runs)) == sorted(gpu.GROUPS)


def test_every_step_of_the_plan_is_a_function_with_its_arguments(gpu: ModuleType) -> None:
    steps = {
        f"{module}:{name}": given
        for module in ("gpu_steps", "gpu_kernels")
        for name, given in _arguments_of(ROOT / "benchmarks" / f"{module}.py").items()
    }
    for quick in (True, False):
        plans = {group: gpu.plan(group, "cuda", quick=quick) for group in gpu.GROUPS}
        for step in (step for plan in plans.values() for step in plan):
            assert set(step.arguments) == steps[step.function], step.name
        names = [step.name for plan in plans.values() for step in plan]
        assert len(set(names)) == len(names)
        assert all(plan and sum(step.least_s for step in plan) <= gpu.GROUP_S for plan in plans.values())
    assert {"limits", "gate", "tests", "tune docs-gpt", "training steps", "kernels", "signs-stream"} <= set(names)
    with pytest.raises(ValueError, match="no group 'other'"):
        gpu.plan("other", "cuda", quick=True)


def test_an_unknown_group_is_refused_before_anything(gpu: ModuleType, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--group", "tests,other"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    assert "no group 'other'" in capsys.readouterr().err


def test_what_travels_to_a_gpu_machine_stays_below_60_mb(wheels: ModuleType) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    tracked = sum((ROOT / name.decode()).lstat().st_size for name in listed if name and (ROOT / name.decode()).exists())
    assert tracked + wheels.MOST_BYTES < 60e6, f"the tracked files weigh {tracked / 1e6:.1f} MB"


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
    brought = {*wheels.CARRIED, *wheels.PURE, *wheels.USUAL}
    known = {*brought, *wheels.UNUSED, *wheels.LEFT_OUT}
    queue = [*project["dependencies"], "pytest", "pytest-timeout", "pytest-xdist", "hypothesis"]
    seen: set[str] = set()
    while queue:
        requirement = Requirement(queue.pop())
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in seen or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        assert name in known, f"{name} is missing in benchmarks/gpu_wheels.py"
        if name not in {*wheels.LEFT_OUT, *wheels.UNUSED}:
            try:
                queue += requires(name) or []
            except PackageNotFoundError:
                pytest.skip(f"{name} is not installed here")
    assert brought - seen <= {"pyyaml"}  # libcst's, which other packages of such a machine use too


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


def test_a_compressed_wheel_holds_the_same_and_takes_less(wheels: ModuleType, tmp_path: Path) -> None:
    text = "".join(f"X_{i} = {i * i}\n" for i in range(9999))
    wheel = tmp_path / "pure-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pure.py", text)
        archive.writestr("pure-1.0.dist-info/RECORD", "")
    before = wheel.stat().st_size
    wheels.compress(wheel)
    assert list(tmp_path.iterdir()) == [wheel] and wheel.stat().st_size < 0.8 * before
    site = wheels.unpack(tmp_path, tmp_path / "unpacked")
    assert (site / "pure.py").read_text() == text and (site / "pure-1.0.dist-info" / "RECORD").exists()


def test_a_step_runs_in_a_process_of_its_own(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpu_steps.py").write_text(
        "import time\ndef good(x): return {'sentence': str(x), 'figures': {}}\ndef hangs(): time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'src'}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gpu_steps", raising=False)
    run = gpu.isolated(tmp_path / "scratch")
    assert run("gpu_steps:good", {"x": 3}, 60.0) == ({"sentence": "3", "figures": {}}, "", "")
    value, failed, kind = run("gpu_steps:hangs", {}, 3.0)
    assert (value, kind) == (None, "")
    assert "took longer" in failed
    with pytest.raises(AttributeError, match="absent"):
        run("gpu_steps:absent", {}, 60.0)
