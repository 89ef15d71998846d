"""Whether a busy machine can bend a verdict: `whet bench --compare`, `--against` and `whet tune` beside other work.

    python benchmarks/busy.py [--minutes 45]

Each verdict is one run of the command beside one background load (busy_loads.py), with a short wait for quiet. The gate
judges the same code and code with 30 % more work; tune looks for a gain on digits-cnn. What is right is known from the
same commands on the quiet machine, which are measured first. Verdicts are added to docs/results/busy.json as they come,
in random order, so that a run cut off loses nothing and the next one adds to it. Nothing else may run meanwhile.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from busy_loads import LOADS, QUIET, running
from circumstances import circumstances
from rich import box
from rich.console import Console
from rich.table import Table

from whet.files import write_whole
from whet.measure.machine import describe
from whet.measure.quiet import glance_at_machine
from whet.tuner.records import TrialRecord

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "busy.json"
WANTED = {"compare": 60, "against": 60, "tune": 20}  # verdicts over all loads
_WAIT = "5s"  # for a quiet machine, in each run
_TUNE_BUDGET = "90s"
_TUNE_WITHOUT = "inductor"  # whose trials take half of the budget
_MORE_WORK = 30  # percent, of the slower code
_TOLERANCE = "0.1"  # slowdown that passes
_CLOSE = 0.15  # to which a claimed ratio has to be right
_SAME, _SLOWER = "same", "slower"
_LIMIT_S = 600

_TARGET = "gate_targets.py:same"
_BASELINE = "baseline.json"

Verdict = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=45.0, help="how long to measure; 0 only evaluates")
    parser.add_argument("--only", choices=WANTED, help="one of the commands")
    arguments = parser.parse_args()
    verdicts = _known()
    ends = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="whet-busy-") as scratch:
        place = Path(scratch)
        if time.monotonic() < ends:
            _must_be_quiet()
            _make_repository(place)
        while time.monotonic() < ends and (left := _left(verdicts, arguments.only)):
            command, load, kind = left[0]
            if command == "compare" and not (place / _BASELINE).exists():
                _whet(["bench", _TARGET, "--save", str(place / _BASELINE)], place / _SAME)
            began = time.monotonic()
            with running(load):
                found = _tune(place) if command == "tune" else _gate(place, command, kind)
            found |= {"command": command, "load": load, "kind": kind, "seconds": round(time.monotonic() - began, 1)}
            verdicts.append(found)
            print(json.dumps(found), flush=True)
            _write(verdicts)
    _write(verdicts)
    _show(verdicts)


def _must_be_quiet() -> None:
    load, names = glance_at_machine(3.0)
    if load.foreign_cores > 0.1:
        sys.exit(f"the machine is busy ({load.foreign_cores:.2f} cores: {names}); what is right could not be known")


def _known() -> list[Verdict]:
    """Return the verdicts that were measured before on this machine."""
    if not RESULTS.exists():
        return []
    known = json.loads(RESULTS.read_text(encoding="utf-8"))
    return list(known["verdicts"]) if known["machine"]["id"] == describe().fingerprint else []


def _left(verdicts: list[Verdict], only: str | None) -> list[tuple[str, str, str]]:
    """Return what is still to be measured: the quiet runs first, since they tell what is right."""
    order = random.Random(len(verdicts))
    cells = [
        (command, load, kind)
        for command in WANTED
        for load in LOADS
        for kind in ((_SAME, _SLOWER) if command != "tune" else ("",))
        if only in (None, command)
    ]
    order.shuffle(cells)
    counts = {cell: sum((v["command"], v["load"], v["kind"]) == cell for v in verdicts) for cell in cells}
    missing = [cell for cell in cells if counts[cell] < _wanted(cell)]
    return sorted(missing, key=lambda cell: (cell[1] != QUIET or counts[cell] > 0, counts[cell] / _wanted(cell)))


def _wanted(cell: tuple[str, str, str]) -> int:
    num_kinds = 1 if cell[0] == "tune" else 2
    return -(-WANTED[cell[0]] // (len(LOADS) * num_kinds))


def _make_repository(place: Path) -> None:
    """Write a repository whose branches hold the same code and slower code, and whose work tree is the former."""
    text = (HERE / "gate_targets.py").read_text(encoding="utf-8")
    slower = text.replace("_PRODUCTS = 100", f"_PRODUCTS = {100 + _MORE_WORK}")
    identity = ["-c", "user.name=whet", "-c", "user.email=whet@example.org", "-c", "init.defaultBranch=main"]
    for name in (_SAME, _SLOWER):
        root = place / name
        root.mkdir()
        for command, code in ((["init", "--quiet"], text), (["add", "-A"], text), (["commit", "-qm", "old"], text)):
            (root / "gate_targets.py").write_text(code, encoding="utf-8")
            subprocess.run(["git", *identity, *command], cwd=root, check=True)
        (root / "gate_targets.py").write_text(slower if name == _SLOWER else text, encoding="utf-8")


def _gate(place: Path, command: str, kind: str) -> Verdict:
    how = ["--compare", str(place / _BASELINE)] if command == "compare" else ["--against", "HEAD"]
    done = _whet(["bench", _TARGET, *how, "--tolerance", _TOLERANCE, "--busy-wait", _WAIT, "--json"], place / kind)
    lines = done.stdout.splitlines()
    if not lines:
        return {"verdict": "broken", "said": done.stderr[-400:]}
    gate = json.loads(lines[-1])
    (verdict,) = gate["verdicts"]
    return {
        "verdict": verdict["outcome"],
        "ratio": verdict["slowdown"],
        "busy": verdict["busy"],
        "exit": done.returncode,
    }


def _tune(place: Path) -> Verdict:
    out = place / "tuned"
    shutil.rmtree(out, ignore_errors=True)
    words = ["tune", "digits-cnn", "--budget", _TUNE_BUDGET, "--exclude", _TUNE_WITHOUT, "--busy-wait", _WAIT]
    words += ["--out", str(out), "--json"]
    done = _whet(words, place)
    lines = done.stdout.splitlines()
    if not lines:
        return {"verdict": "broken", "said": done.stderr[-400:]}
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    measured = {p["label"]: p["speedup"] for p in result["finalists"]}
    screened = {_label(t): t["speedup"] for t in result["trials"] if t["speedup"]}
    return {
        "verdict": result["verdict"],
        "ratio": result["best"]["speedup"] if result["verdict"] == "gain" else None,
        "label": result["best"]["label"],
        "measured": measured,
        "screened": screened,
        "busy": result["busy"],
        "sentence": result["sentence"],
        "exit": done.returncode,
    }


def _label(trial: dict[str, Any]) -> str:
    return TrialRecord.model_validate(trial).label


def _whet(words: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "whet", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_LIMIT_S, check=False)


def _write(verdicts: list[Verdict]) -> None:
    report = {
        **circumstances("python benchmarks/busy.py"),
        "wait": _WAIT,
        "rows": _rows(verdicts),
        "verdicts": verdicts,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    write_whole(RESULTS, json.dumps(report, indent=1) + "\n")


def _rows(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """Return one row for each command and load.

    A row counts the verdicts, the wrong ones, those that a busy machine or scatter left open, and ratios far off.
    """
    rows = []
    for command in WANTED:
        for load in LOADS:
            found = [v for v in verdicts if v["command"] == command and v["load"] == load]
            if not found:
                continue
            distances = [d for v in found if (d := _distance(v, verdicts)) is not None]
            rows.append(
                {
                    "command": command,
                    "load": load,
                    "num": len(found),
                    "num_wrong": sum(map(_is_wrong, found)),
                    "num_busy": sum(v["verdict"] == "inconclusive" and bool(v["busy"]) for v in found),
                    "num_unclear": sum(v["verdict"] == "inconclusive" and not v["busy"] for v in found),
                    "num_ratios": len(distances),
                    "num_far": sum(d > _CLOSE for d in distances),
                    "largest_distance": max(distances, default=None),
                    "median_seconds": statistics.median(v["seconds"] for v in found),
                }
            )
    return rows


def _is_wrong(verdict: Verdict) -> bool:
    """Tell whether a verdict says what is not so. digits-cnn can be made faster, and a gain's ratio is judged apart."""
    wrong = {_SAME: ("fail",), _SLOWER: ("pass",), "": ("no-gain", "failed")}
    return verdict["verdict"] == "broken" or verdict["verdict"] in wrong[verdict["kind"]]


def _distance(verdict: Verdict, verdicts: list[Verdict]) -> float | None:
    """Return by what share a claimed ratio differs from the quiet machine's; None where none is claimed or known."""
    claims = {"compare": "fail", "against": "fail", "tune": "gain"}
    if verdict["load"] == QUIET or verdict["verdict"] != claims[verdict["command"]]:
        return None
    quiet = [
        v for v in verdicts if (v["load"], v["command"], v["kind"]) == (QUIET, verdict["command"], verdict["kind"])
    ]
    if verdict["command"] == "tune":
        label = verdict["label"]
        known = [v["measured"][label] for v in quiet if label in v["measured"]]
    else:
        known = [v["ratio"] for v in quiet if v["ratio"] is not None]
    if not known:
        return None
    right = statistics.median(known)
    return abs(float(verdict["ratio"]) / right - 1)


def _show(verdicts: list[Verdict]) -> None:
    table = Table(title="verdicts beside other work", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("command", "load", "verdicts", "wrong", "busy", "not clear", "ratios", "off by > 15 %", "s"):
        table.add_column(name, justify="left" if name in ("command", "load") else "right")
    for row in _rows(verdicts):
        names = ("num", "num_wrong", "num_busy", "num_unclear", "num_ratios", "num_far")
        table.add_row(row["command"], row["load"], *(str(row[n]) for n in names), f"{row['median_seconds']:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
