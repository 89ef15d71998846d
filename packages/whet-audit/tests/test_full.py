import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet_audit.cli import main
from whet_audit.collect import SourceFile
from whet_audit.finding import Confidence, Finding, Fix, Gain, HotPath, Measured, Priority, Span
from whet_audit.formats import render
from whet_audit.report import Report

Make = Callable[..., Finding]
TEXT = "total = 0\nfor x, y in loader:\n    loss.item()\n    go_on(\n        x,\n        y,\n    )\n"


def shown(finding: Finding, text: str = TEXT) -> str:
    return render(Report((finding,), sources={finding.path: SourceFile(finding.path, text)}, num_files=1), "full")


def test_all_of_a_finding(make_finding: Make) -> None:
    hot = HotPath("training loop", "main", "train.py", 2, ("main", "log"), "for each token in tokens", "step > 3")
    finding = make_finding(hot=hot, fix=Fix("sum on the GPU", False, ()))
    assert shown(finding) == (
        "train.py:3:5: SYN101 item-in-loop [high, sure]\n"
        "  loss.item() waits for the GPU in every step\n"
        "    |\n"
        "  2 | for x, y in loader:\n"
        "  3 |     loss.item()\n"
        "    |     ^^^^^^^^^^^\n"
        "    |\n"
        "    = loop: training loop at train.py:2, through main → log, if step > 3\n"
        "    = gain: up to 30% of the step's time, not measured; assumes: up to the share\n"
        "            of the step that waits\n"
        "    = do:   sum on the GPU (unsafe, --fix --unsafe-fixes)\n"
        "\n"
        "1 finding (1 high) in 1 file\n"
        "1 can be fixed with --fix --unsafe-fixes"
    )


def test_a_place_of_several_lines(make_finding: Make) -> None:
    lines = shown(make_finding(at=(4, 4, 7, 5))).splitlines()
    assert lines[2:9] == [
        "    |",
        "  3 |     loss.item()",
        "  4 |     go_on(",
        "    |     ^^^^^^",
        "  5 |         x,",
        "  6 |         y,",
        "    |",
    ]


def test_measured_and_not_in_a_loop_and_in_a_notebook(make_finding: Make) -> None:
    measured = Measured(1.5, 1.4, 1.6, "pass", "losses 0.1% apart")
    finding = make_finding(hot=None, measured=measured, cell=2, at=(1, 0, 1, 5), fix=Fix("do it", True, ()))
    source = SourceFile("train.py", "a\nb\nitem()\n", (1, 3))
    text = render(Report((finding,), sources={"train.py": source}, num_files=1), "full")
    assert text.startswith("train.py:cell 2:1:1: SYN101")
    assert "\n  1 | item()\n    | ^^^^^\n" in text
    assert "measured 1.50× (1.40–1.60), pass; losses 0.1%" in " ".join(text.split())
    assert "loop:" not in text
    assert "notebooks are not fixed automatically" in text


def test_without_its_source(make_finding: Make) -> None:
    text = render(Report((make_finding(),), num_files=1), "full")
    assert "^" not in text
    assert "= gain:" in text


def test_colour_changes_nothing_but_colour(make_finding: Make) -> None:
    report = Report((make_finding(),), sources={"train.py": SourceFile("train.py", TEXT)}, num_files=1)
    coloured = render(report, "full", colour=True)
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(report, "full")


def columns(text: str) -> list[str]:
    """Each column of a terminal's line and the character in it; of a wide one the second column is empty."""
    found: list[str] = []
    for character in text:
        if unicodedata.combining(character):
            continue
        found += [character, ""] if unicodedata.east_asian_width(character) in "WF" else [character]
    return found


@given(
    st.text("ab é漢\t(.", max_size=120),
    st.text("xyz漢.(", min_size=1, max_size=25),
    st.text("ab é漢\t)", max_size=120),
    st.integers(1, 12_000),
)
def test_carets_stand_under_the_place_and_lines_fit(before: str, place: str, after: str, number: int) -> None:
    line = f"{before}{place}{after};"
    finding = Finding(
        "SYN101", "item-in-loop", "train.py", Span(number, len(before), number, len(before) + len(place)),
        "it waits " * 20, Priority.HIGH, Confidence.HIGH, Gain(0, 0.3, "words " * 30), HotPath("training loop", "f"),
    )  # fmt: skip
    text = "\n" * (number - 1) + line + "\n"
    lines = shown(finding, text).splitlines()
    assert all(len(columns(one)) <= 80 for one in lines)
    at = next(index for index, one in enumerate(lines) if set(one.strip()) == {"|", "^", " "})
    carets = columns(lines[at])
    under = [c for c, caret in zip(columns(lines[at - 1]) + [""] * 80, carets, strict=False) if caret == "^"]
    assert "".join(under) == place


def test_a_place_too_long_for_the_line_is_cut(make_finding: Make) -> None:
    lines = shown(make_finding(at=(1, 2, 1, 500)), "  " + "f(" * 300 + "\n").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[3].endswith("f(f(…") or lines[3].endswith("f…")
    assert lines[4].count("^") > 60


@pytest.mark.parametrize("bad", ["\x1b[31mred", "a\x0cb", "a\x00b", "a\x9bb"])
def test_nothing_in_the_source_reaches_the_terminal_as_a_command(bad: str, make_finding: Make) -> None:
    text = shown(make_finding(at=(1, 0, 1, 3), message=f"{bad}\nx", path=f"{bad}.py"), f"{bad}\n")
    assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize(("columns", "widest"), [("80", 80), ("120", 120), ("500", 120), ("20", 60)])
def test_paragraphs_are_as_wide_as_the_terminal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: str,
    widest: int,
) -> None:
    code = "for x, y in loader:\n    loss = criterion(model(x), y)\n    loss.backward()\n    total += loss.item()\n"
    (tmp_path / "train.py").write_text(f"import torch\nloader = torch.utils.data.DataLoader(data)\n{code}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["train.py", "--preview", "--all"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("train.py:")]
    assert widest - 12 < max(map(len, lines)) <= widest
    assert main(["train.py", "--preview", "--all", "--out", "found.txt"]) == 1
    lines = [line for line in Path("found.txt").read_text().splitlines() if not line.startswith("train.py:")]
    assert max(map(len, lines)) <= 80
