"""The formats for machines and the short ones; each read back by something that does not know how it was written."""

import ast
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet_audit.card import read_card
from whet_audit.collect import Problem, SourceFile
from whet_audit.finding import (
    AddImport,
    Confidence,
    Finding,
    Fix,
    Gain,
    HotPath,
    Measured,
    Priority,
    ReplaceExpression,
    SetKeyword,
    Span,
)
from whet_audit.formats import FORMATS, github, render, wording
from whet_audit.report import Report

Make = Callable[..., Finding]
TEXT = "import torch\nfor x in loader:\n    loss.item()\n    x.to(device)\n"
KEYWORD = SetKeyword(Span(4, 4, 4, 16), "non_blocking", "True")


@pytest.fixture
def report(make_finding: Make) -> Report:
    findings = (
        make_finding(),
        make_finding(
            code="MOV101", name="blocking-transfer", at=(4, 4, 4, 16), priority=Priority.MEDIUM,
            fix=Fix("copy without waiting", True, (KEYWORD,)), message="x.to(device): 100% of it, waits",
            measured=Measured(1.2, 1.1, 1.3, "pass"),
        ),
        make_finding(
            path="note book.ipynb", at=(2, 0, 3, 1), cell=3, priority=Priority.LOW, confidence=Confidence.LOW,
            fix=Fix("do it", False, (AddImport("torch"),)), hot=None,
        ),
    )  # fmt: skip
    return Report(
        findings=findings,
        sources={
            "train.py": SourceFile("train.py", TEXT),
            "note book.ipynb": SourceFile("note book.ipynb", "a\nb\nc\nd\n", (1, 1, 2)),
        },
        cards={"SYN101": read_card("SYN101", "item-in-loop", Priority.HIGH, "SYN101 x: T.\n\nFinds       F.")},
        problems=(Problem("bad.py", 3, "does not parse: x"),),
        num_files=2,
        num_lines=8,
    )


def test_concise(report: Report) -> None:
    assert render(report, "concise").splitlines() == [
        "train.py:3:5: SYN101 loss.item() waits for the GPU in every step (high, up to 30% of the step's time)",
        "train.py:4:5: MOV101 [*] x.to(device): 100% of it, waits (medium, 1.20× (1.10–1.30), pass)",
        "note book.ipynb:cell 3:2:1: SYN101 loss.item() waits for the GPU in every step (low, up to 30% of the step's "
        "time)",
        "3 findings (1 high, 1 medium, 1 low) in 2 files; 1 file not read",
        "1 can be fixed with --fix",
        "notebooks are not fixed automatically",
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_found(name: str) -> None:
    text = render(Report((), num_files=1), name)
    assert "None" not in text
    if name in ("full", "concise"):
        assert text == "No findings in 1 file"


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (Gain(0.0, 0.3, "x"), "up to 30%"),
        (Gain(0.05, 0.3, "x"), "5–30%"),
        (Gain(0.2, 0.2, "x"), "20%"),
        (Gain(0.0, 0.004, "x"), "up to 0.4%"),
        (Gain(0.0, 0.0, "x"), "0%"),
    ],
)
def test_gains_in_words(gain: Gain, text: str) -> None:
    assert wording.gain(gain) == f"{text} of the step's time"


def test_json(report: Report) -> None:
    content = json.loads(render(report, "json"))
    assert content["format"] == 1
    first, second, third = content["findings"]
    assert (first["path"], first["line"], first["column"], first["end_column"]) == ("train.py", 3, 5, 16)
    assert first["gain"] == {"low": 0.0, "high": 0.3, "assumption": "up to the share of the step that waits"}
    assert first["loop"]["text"] == "training loop at train.py:2"
    assert (first["fix"], first["measured"]) == (None, None)
    assert second["fix"] == {"title": "copy without waiting", "is_safe": True}
    assert second["measured"]["ratio"] == 1.2
    assert (third["cell"], third["loop"]) == (3, None)
    assert content["problems"] == [{"path": "bad.py", "line": 3, "message": "does not parse: x"}]
    assert content["summary"]["num_high"] == 1
    assert content["summary"]["num_fixable"] == 1
    assert content["summary"]["num_fixable_unsafe"] == 0  # it lies in a notebook


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Workflow commands as GitHub's runner takes them apart."""
    found = []
    for line in text.split("\n"):
        matched = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
        assert matched is not None, line
        pairs = [pair.partition("=")[::2] for pair in matched[2].split(",")]
        properties = {key: _unescaped(value, {"%3A": ":", "%2C": ","}) for key, value in pairs}
        found.append((matched[1], properties, _unescaped(matched[3], {})))
    return found


def _unescaped(text: str, more: dict[str, str]) -> str:
    for code, plain in {"%0D": "\r", "%0A": "\n", **more, "%25": "%"}.items():
        text = text.replace(code, plain)
    return text


def test_github(report: Report) -> None:
    first, second, third, problem = commands(render(report, "github"))
    assert first[0] == "error"
    expected = {"file": "train.py", "line": "3", "endLine": "3", "col": "5", "endColumn": "16"}
    assert first[1] == {**expected, "title": "SYN101 item-in-loop"}
    assert second[0] == "warning"
    assert second[2].startswith("x.to(device): 100% of it, waits (up to 30%")
    assert second[2].endswith("\nfix: copy without waiting (safe, --fix)")
    assert third[0] == "notice"
    assert third[1] == {"file": "note book.ipynb", "title": "SYN101 item-in-loop"}
    assert third[2].startswith("cell 3, line 2: ")
    assert problem == ("error", {"file": "bad.py", "line": "3", "title": "whet audit"}, "does not parse: x")


@given(st.text("ab%:,\n\r0AD2C3=", max_size=20), st.text("ab%:,\n\r0AD2C3=", min_size=1, max_size=12))
def test_github_brings_back_every_name_and_message(message: str, path: str) -> None:
    made = Finding(
        "SYN101", "x", path, Span(1, 0, 2, 3), message, Priority.HIGH, Confidence.HIGH, Gain(0, 0, "a"), HotPath("", "")
    )
    (level, properties, text), = commands(github.render(Report((made,))))  # fmt: skip
    assert level == "error"
    assert properties == {"file": path, "line": "1", "endLine": "2", "title": "SYN101 x"}
    assert text.startswith(f"{message} (")


def check_sarif(text: str) -> dict[str, Any]:
    """What the 2.1.0 schema requires of what is used here; returns the run."""
    log = json.loads(text)
    assert log["version"] == "2.1.0"
    assert log["$schema"].startswith("https://")
    (run,) = log["runs"]
    assert set(run) <= {"tool", "columnKind", "invocations", "results"}
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    driver = run["tool"]["driver"]
    assert driver["name"]
    for rule in driver["rules"]:
        assert rule["id"]
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    assert all(isinstance(call["executionSuccessful"], bool) for call in run["invocations"])
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        if "ruleIndex" in result:
            assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        for location in result["locations"]:
            check_place(location["physicalLocation"])
        for fix in result.get("fixes", []):
            assert fix["description"]["text"]
            for change in fix["artifactChanges"]:
                assert change["artifactLocation"]["uri"]
                assert change["replacements"]
                for replacement in change["replacements"]:
                    check_region(replacement["deletedRegion"])
                    assert isinstance(replacement["insertedContent"]["text"], str)
    return run  # type: ignore[no-any-return]


def check_place(place: dict[str, Any]) -> None:
    uri = place["artifactLocation"]["uri"]
    assert re.fullmatch(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+", uri), uri
    if "region" in place:
        check_region(place["region"])


def check_region(region: dict[str, int]) -> None:
    assert all(isinstance(value, int) and value >= 1 for value in region.values())
    first = region["startLine"], region.get("startColumn", 1)
    assert first <= (region.get("endLine", first[0]), region.get("endColumn", first[1]))


def test_sarif(report: Report) -> None:
    run = check_sarif(render(report, "sarif"))
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note"]
    assert run["results"][0]["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "train.py"},
        "region": {"startLine": 3, "startColumn": 5, "endLine": 3, "endColumn": 16},
    }
    assert run["results"][2]["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": "note%20book.ipynb"}}
    assert run["invocations"][0]["executionSuccessful"] is False
    assert run["invocations"][0]["toolExecutionNotifications"][0]["level"] == "error"


@pytest.mark.parametrize("path", ["a b/ü.py", "a#b?.py", "50%.py", "/abs/x y.py", "\udcff.py"])
def test_sarif_names_are_uris(path: str, make_finding: Make) -> None:
    run = check_sarif(render(Report((make_finding(path=path),)), "sarif"))
    uri = urlparse(run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
    assert uri.scheme == ("file" if path.startswith("/") else "")
    assert (uri.query, uri.fragment) == ("", "")
    if path.isprintable():
        assert unquote(uri.path) == path


def test_sarif_fingerprints_stay_where_lines_move_and_differ_for_equal_lines(make_finding: Make) -> None:
    def prints(text: str, *lines: int) -> list[str]:
        found = tuple(make_finding(at=(line, 0, line, 8)) for line in lines)
        run = check_sarif(render(Report(found, sources={"train.py": SourceFile("train.py", text)}), "sarif"))
        return [result["partialFingerprints"]["whetAudit/v1"] for result in run["results"]]

    before = prints("x.item()\ny.item()\nx.item()\n", 1, 2, 3)
    assert len(set(before)) == 3
    assert prints("\n\n  x.item()\ny.item()\nz = 1\nx.item()\n", 3, 4, 6) == before


@pytest.mark.parametrize(
    ("call", "edit", "expected"),
    [
        ("f()", ("a", "1"), "f(a=1)"),
        ("f(x)", ("a", "1"), "f(x, a=1)"),
        ("f(x, )", ("a", "1"), "f(x, a=1)"),
        ("f(x, a=(2))", ("a", "1"), "f(x, a=(1))"),
        ("f(a=g(')'), b=3)", ("a", "1"), "f(a=1, b=3)"),
        ("f(*x, **y)", ("a", "1"), "f(*x, **y, a=1)"),
        ("f(x for x in y)", ("a", "1"), None),
        ("f('é')", ("a", "1"), None),
    ],
)
def test_sarif_fixes_are_text_that_can_be_put_in(
    call: str, edit: tuple[str, str], expected: str | None, make_finding: Make
) -> None:
    text = f"if True:\n    y = {call}; z = 1\n"
    span = Span(2, 8, 2, 8 + len(call))
    finding = make_finding(at=(2, 8, 2, 8 + len(call)), fix=Fix("set it", True, (SetKeyword(span, *edit),)))
    source = SourceFile("train.py", text)
    run = check_sarif(render(Report((finding,), sources={"train.py": source}), "sarif"))
    fixes = run["results"][0].get("fixes")
    if expected is None:
        assert fixes is None
        return
    assert _put_in(text, fixes) == f"if True:\n    y = {expected}; z = 1\n"


def test_sarif_replaces_expressions_and_leaves_out_what_it_cannot_say(make_finding: Make) -> None:
    text = "a = b.c()\n"
    edits = (ReplaceExpression(Span(1, 4, 1, 9), "d"),)
    whole = make_finding(at=(1, 4, 1, 9), fix=Fix("t", True, edits))
    partly = make_finding(at=(1, 4, 1, 9), fix=Fix("t", True, (*edits, AddImport("x"))))
    source = {"train.py": SourceFile("train.py", text)}
    run = check_sarif(render(Report((whole, partly), sources=source), "sarif"))
    assert _put_in(text, run["results"][0]["fixes"]) == "a = d\n"
    assert "fixes" not in run["results"][1]


def _put_in(text: str, fixes: list[dict[str, Any]]) -> str:
    lines = text.split("\n")
    for replacement in fixes[0]["artifactChanges"][0]["replacements"]:
        region, new = replacement["deletedRegion"], replacement["insertedContent"]["text"]
        assert region["startLine"] == region["endLine"]
        line = lines[region["startLine"] - 1]
        lines[region["startLine"] - 1] = line[: region["startColumn"] - 1] + new + line[region["endColumn"] - 1 :]
    made = "\n".join(lines)
    ast.parse(made)
    return made
