"""What the pages say was measured is what the files in docs/results hold, and no page denies what ran on a GPU."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
_DENIES = re.compile(
    r"(?:not|never|neither has) (?:yet )?(?:been )?(?:run|ran|timed)(?: yet)? (?:on a GPU|on one|there)|"
    r"where (?:it|whet) has not (?:been )?run"
)


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load one of the modules in benchmarks/, which may import others there."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def between_marks(page: Path, mark: str) -> str:
    return page.read_text(encoding="utf-8").split(f"<!-- measured: {mark} -->")[1].split("<!-- end -->")[0].strip()


def test_the_page_on_gpus_says_what_ran_when_and_on_what(monkeypatch: pytest.MonkeyPatch) -> None:
    report = read("gpu.json")
    lines = script("gpu_table", monkeypatch).gpu_lines(report)
    assert between_marks(DOCS / "gpu.md", "benchmarks/results.py, gpu") == "\n".join(lines[1:]).strip()
    text = "\n".join(lines)
    newest = {run["group"]: run for run in sorted(report["runs"], key=lambda run: run["written_at"])}
    for run in newest.values():
        for said in (run["machine"]["gpu"], run["written_at"][:10], run["versions"]["torch"], run["commit"]):
            assert said in text
        assert all(f"| {step['name']} | {step['status']} |" in text for step in run["steps"])


def test_no_page_says_that_whet_never_ran_on_a_gpu() -> None:
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *(DOCS / "guides").glob("*.md")]
    pages += (ROOT / "src" / "whet").rglob("*.py")
    texts = {page: " ".join(page.read_text(encoding="utf-8").split()) for page in pages if page.name != "log.md"}
    assert {str(page): found[0] for page, text in texts.items() if (found := _DENIES.search(text))} == {}
    assert _DENIES.search("It has not been run on a GPU yet.")
    assert _DENIES.search("The kernel has not been run on one yet.")


def test_readme_compares_with_the_best_peer_by_hand_as_measured() -> None:
    rows = [line.split(" | ") for line in between_marks(ROOT / "README.md", "benchmarks/results.py").splitlines()]
    table = {row[0].removeprefix("| "): row for row in rows if len(row) > 5}
    demo = read("demo.json")
    peers = {row["name"]: row for row in read(f"peers-builtin.{demo['machine']['id']}.json")["models"]}
    assert "best peer by hand" in table["model"][5]
    for workload in demo["workloads"]:
        row, peer = table[workload["target"]], peers[workload["target"]]
        assert row[3].startswith(f"**{workload['speedup']:.2f}x**")
        assert row[5].startswith(f"**{peer['over_best_peer']['ratio']:.2f}x**")
        assert row[5].endswith(peer["best_peer"])


def test_no_ratio_is_given_of_an_extrapolated_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    report = read("memory_table.ac9f9ad158b5.json")
    lines = script("recall_tables", monkeypatch).memory_lines(report)
    text = "\n".join(lines)
    assert "(extrapolated)" in text
    longest = [line for line in lines if "| naive attention | 32,768 |" in line]
    assert longest
    assert all("| — |" in line and "not measured" in line for line in longest)
    assert "49,338" not in text
    assert "49,338" not in (RESULTS / "state-space-models.md").read_text(encoding="utf-8")


def test_the_table_of_several_processes_says_whether_the_interval_reaches_the_aim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"kept_bytes": 134e6, "most_bytes": 151e6, "table_bytes": 100.6e6}
    row = {"step_ms": 630.0, "tokens_per_s": 1620.0, "of_one_process": 1.01, "loss_differs": 0.0, **sizes}
    report = {
        "ranks": 2,
        "aim": 0.98,
        "shape": {"num_hidden_layers": 6, "hidden_size": 256, "rows": 8, "tokens": 128},
        "rows": [
            {**row, "stage": stage, "of_by_hand": {"ratio": 1.0, "ci95": interval}}
            for stage, interval in enumerate([[0.98, 1.02], [0.97, 1.02], [0.9, 0.979]])
        ],
    }
    lines = script("parallel_tables", monkeypatch).parallel_lines(report)
    speed = [line for line in lines if line.startswith("|") and "**" in line]
    assert [line.split(" | ")[5] for line in speed] == ["reached", "open", "missed"]
    assert "| 630 | 1,620 | 1.01 | **1.000** (0.970–1.020) |" in speed[1]
    assert lines[-1] == "| 2 | 134.0 | 151.0 | 100.6 |"


def test_held_is_each_storage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one process, which gathers nothing: weights, gradients and two moments, and Adam's count of steps."""
    benchmark = script("parallel", monkeypatch)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
    model[1].weight.data = model[2].weight.data.new_empty(512)[:256].view(16, 16)  # half of a storage
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(torch.ones(3, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    count = sum(p.numel() for p in model.parameters())
    found = benchmark.held_bytes(model, optimizer, step)
    assert found["kept_bytes"] == 16 * count + 4 * 256 + 4 * 6
    assert found["most_bytes"] == found["kept_bytes"]


def test_results_are_on_one_page_a_subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = script("result_pages", monkeypatch)
    (tmp_path / "results").mkdir()
    parts = {
        "gpu": "## On a GPU: X\n\n[machines](machines.md) ![plot](results/p.svg) [far](https://a.b)\n",
        "limits": "## L\n",
    }
    pages.write_pages(tmp_path, parts)
    text = (tmp_path / "results" / "gpu.md").read_text(encoding="utf-8")
    assert "[machines](../machines.md) ![plot](../results/p.svg) [far](https://a.b)" in text
    assert "- [On a GPU: X](results/gpu.md#on-a-gpu-x)" in (tmp_path / "results.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"no subject of benchmarks/result_pages\.py takes other"):
        pages.write_pages(tmp_path, {**parts, "other": "## O\n"})
    assert {f"{subject.name}.md" for subject in pages.SUBJECTS} == {page.name for page in RESULTS.glob("*.md")}
    assert max(page.stat().st_size for page in [DOCS / "results.md", *RESULTS.glob("*.md")]) < 30_000
