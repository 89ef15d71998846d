"""Each command has a function that does the same; docs/python.md says which. Other rooms compare what they return."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from completion_server import FakeServer, tokens

import whet
from whet.cli import COMMANDS, main
from whet.server.load_test.options import Options

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"
NET = "import torch\n\ndef net():\n    torch.manual_seed(0)\n    return torch.nn.Linear(8, 8), torch.randn(4, 8)\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_page_names_every_command_and_functions_that_are_there() -> None:
    rows = [
        line.split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `whet ")
    ]
    assert {cells[1].split()[1].strip("`") for cells in rows} == set(COMMANDS)
    for cells in rows:
        functions = re.findall(r"whet\.(\w+)", cells[2])
        assert functions, cells
        assert set(functions) <= set(whet.__all__)


@pytest.mark.usefixtures("short_children")
def test_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = whet.bench(["net.py:net"], batch=[1, 2], budget_s=0.1, with_memory=True, on_busy="go-on")
    words = ["--batch", "1,2", "--budget", "0.1s", "--memory", "--on-busy", "go-on", "--json"]
    found = shown(capsys, "bench", "net.py:net", *words)
    mine = sweep.model_dump(mode="json")
    assert found.keys() == mine.keys()
    for key in ("fingerprint", "machine", "versions"):
        assert found[key] == mine[key]
    for one, other in zip(mine["points"], found["points"], strict=True):
        assert other.keys() == one.keys() - {"samples_ms"}
        for key in ("target", "sizes", "status", "reason"):
            assert one[key] == other[key]


@pytest.mark.usefixtures("short_children")
def test_a_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--budget", "0.1s", "--processes", "2", "--on-busy", "go-on", "--json"]
    shown(capsys, "bench", "net.py:net", "--save", "baseline.json", *words)
    baseline = whet.read_baseline("baseline.json")
    gate = whet.against_baseline(baseline, baseline)
    assert [verdict.label for verdict in gate.verdicts] == ["net.py:net"]
    assert gate.outcome in ("pass", "inconclusive")
    with pytest.raises(whet.WhetError, match=r"there is no baseline none\.json"):
        whet.read_baseline("none.json")
    damaged = json.loads(Path("baseline.json").read_text())
    Path("other.json").write_text(json.dumps({**damaged, "fingerprint": "0" * 12, "machine": {"chip": "other"}}))
    with pytest.raises(whet.WhetError):
        whet.read_baseline("other.json")


def test_a_load_test(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    with FakeServer(script=partial(tokens, token_s=0.001)) as server:
        test = whet.bench_serve(server.url, Options(rate=200, num_requests=20, seed=7), on_busy="go-on")
        words = ["--rate", "200", "--num-requests", "20", "--seed", "7", "--on-busy", "go-on"]
        found = shown(capsys, "bench-serve", server.url, *words, "--out", "kept", "--json")
    test.write("mine")
    mine = json.loads((here / "mine" / "report.json").read_text())
    for key in ("url", "model", "source", "seed", "num_planned", "num_cut", "shared_prefix", "is_partial"):
        assert mine[key] == found[key]
    for key in ("num_requests", "num_answered", "output_tokens", "failures"):
        assert mine["figures"][key] == found["figures"][key]
    planned = [
        [line.split(",")[0] for line in (here / name / "requests.csv").read_text().splitlines()]
        for name in ("mine", "kept")
    ]
    assert planned[0] == planned[1]
    with pytest.raises(whet.WhetError, match="with a DIR or a NAME"):
        whet.bench_serve("http://127.0.0.1:1", Options(rate=1), serve_options=["--port", "1"])


@pytest.mark.usefixtures("short_children")
def test_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    whet.Recipe(steps=[]).write(Path("recipe.toml"))
    mine = whet.apply_recipe("recipe.toml", "net.py:net", "mine").model_dump(mode="json")
    found = shown(capsys, "apply", "recipe.toml", "net.py:net", "--out", "kept", "--json")
    assert mine.pop("out").endswith("mine")
    assert found.pop("out").endswith("kept")
    for each in (mine, found):  # sums may take another order in another process
        each["quality"] = each["agreement"]["cosine"] = round(each["quality"], 6)
    assert mine == found
    assert whet.load("mine").manifest == whet.load("kept").manifest
