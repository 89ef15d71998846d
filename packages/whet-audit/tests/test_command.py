"""`whet-audit` as it is called: exit codes, files written, one line for what is wrong. With a toy engine."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import whet_audit.run
from whet_audit.cli import PROGRAM, main
from whet_audit.finding import Confidence
from whet_audit.run import run

LOOP = "for x in loader:\n    x.to(device)\n    x.cuda()\n    x.item()\n"
FIXED = LOOP.replace("to(device)", "to(device, non_blocking=True)")
FIXED_ALL = FIXED.replace("cuda()", "cuda(non_blocking=True)")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: None) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(LOOP, encoding="utf-8")
    return tmp_path


class Ran:
    def __init__(self, code: Any, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def audit(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> Ran:
        code = main(arguments)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return call


def codes(ran: Ran) -> list[str]:
    return [finding["code"] for finding in json.loads(ran.out)["findings"]]


def test_findings_are_printed_and_the_exit_code_is_one(audit: Any) -> None:
    ran = audit("train.py")
    assert ran.code == 1
    assert ran.err == ""
    assert ran.out.startswith(" 1. train.py:4:5: SYN101 item-call [high, sure]\n")
    assert ran.out.endswith("1 can be fixed with --fix, 1 more with --unsafe-fixes\n")
    assert "\x1b" not in ran.out


def test_nothing_found(audit: Any) -> None:
    Path("clean.py").write_text("x = 1\n", encoding="utf-8")
    ran = audit("clean.py")
    assert (ran.code, ran.out) == (0, "No findings in 1 file\n")
    Path("empty").mkdir()
    assert audit("empty").code == 0


def test_nothing_to_audit_is_said(audit: Any, here: Path) -> None:
    (here / "empty").mkdir()
    ran = audit("empty")
    assert ran.code == 0
    assert ran.out.startswith("No findings: there is no Python file or notebook to audit; check the paths")


def test_selection_by_options_settings_and_comments(audit: Any, here: Path) -> None:
    assert codes(audit("train.py", "--json", "--select", "MOV")) == ["MOV102", "MOV101"]  # by cost
    assert codes(audit("--select", "MOV,SYN", "--ignore", "mov102", "train.py", "--json")) == ["SYN101", "MOV101"]
    (here / "pyproject.toml").write_text('[tool.whet.audit]\nignore = ["MOV101"]\nexclude = ["old"]', encoding="utf-8")
    Path("old").mkdir()
    Path("old/x.py").write_text(LOOP, encoding="utf-8")
    assert codes(audit(".", "--json")) == ["SYN101", "MOV102"]  # what costs most comes first
    assert codes(audit(".", "--json", "--select", "MOV101")) == ["MOV101"]
    Path("train.py").write_text(LOOP.replace("x.cuda()", "x.cuda()  # noqa: MOV102"), encoding="utf-8")
    assert codes(audit(".", "--output-format", "json")) == ["SYN101"]


def test_levels_choose_what_is_shown_and_what_fails(audit: Any) -> None:
    assert codes(audit("train.py", "--json", "--min-priority", "medium")) == ["SYN101", "MOV101"]
    assert audit("train.py", "--fail-on", "high").code == 1
    assert audit("train.py", "--fail-on", "high", "--ignore", "SYN").code == 0
    Path("pyproject.toml").write_text('[tool.whet.audit]\nfail-on = "high"\nignore = ["SYN"]', encoding="utf-8")
    assert audit("train.py").code == 0
    assert audit("train.py", "--fail-on", "medium").code == 1


def test_what_is_only_perhaps_so_is_counted_and_shown_when_asked_for(
    audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_audit: Any = whet_audit.run.inspect_files

    def unsure(*given: Any) -> Any:
        found = toy_audit(*given)
        made = [replace(one, confidence=Confidence.LOW) if one.code == "MOV101" else one for one in found.findings]
        return replace(found, findings=tuple(made))

    monkeypatch.setattr("whet_audit.run.inspect_files", unsure)
    ran = audit("train.py", "--fix", "--output-format", "concise")
    assert "MOV101" not in ran.out
    assert "1 finding more, less sure: --all shows them" in ran.out
    assert Path("train.py").read_text(encoding="utf-8") == LOOP  # what is hidden is not fixed
    for arguments in (["--all"], ["--min-confidence", "perhaps"]):
        assert "MOV101" in codes(audit("train.py", "--json", *arguments))
    assert codes(audit("train.py", "--json", "--min-confidence", "perhaps", "--min-priority", "high")) == ["SYN101"]
    audit("train.py", "--all", "--write-baseline", "known.json")
    known = audit("train.py", "--baseline", "known.json")
    assert (known.code, "baseline: 3 known\n" in known.out) == (0, True)  # none is gone that is only hidden


def test_left_out_files_are_counted_and_audited_when_named(audit: Any) -> None:
    Path("tests").mkdir()
    Path("examples").mkdir()
    Path("tests/a.py").write_text(LOOP, encoding="utf-8")
    Path("examples/b.py").write_text(LOOP + "x = (\n", encoding="utf-8")
    ran = audit(".", "--output-format", "concise")
    assert ran.code == 1
    assert ran.err == ""
    assert "in 1 file\n" in ran.out
    assert ran.out.endswith("2 files of tests and examples left out: name them to have them audited\n")
    assert len(codes(audit("tests", "--json"))) == 3
    assert audit("examples").code == 2
    assert audit(".", "--exclude", "train.py,examples", "--output-format", "concise").out == (
        "No findings in 0 files\n1 file of tests and examples left out: name them to have them audited\n"
    )


def test_files_that_do_not_parse_are_one_line_each_and_the_rest_goes_on(audit: Any) -> None:
    Path("old.py").write_text("x = 1\nprint 'x'\n", encoding="utf-8")
    Path("latin.py").write_bytes(b"s = '\xe9'\n")
    ran = audit(".", "nowhere", "--output-format", "concise")
    assert ran.code == 2
    assert ran.err.splitlines()[0].startswith("latin.py:1: does not parse: ")
    assert ran.err.splitlines()[1] == "nowhere: there is no such file or directory"
    assert ran.err.splitlines()[2].startswith("old.py:2: does not parse: ")
    assert len(ran.err.splitlines()) == 3
    assert ran.out.splitlines()[0].startswith("train.py:4:5: SYN101")  # what costs most
    assert "3 findings (1 high, 1 medium, 1 low) in 1 file; 3 files not read" in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name files or directories"),
        (["train.py", "--selct", "x"], "--selct"),
        (["train.py", "--output-format", "xml"], "xml"),
        (["train.py", "--select", "SYM101"], "--select: there is no code 'SYM101'; did you mean SYN101"),
        (["train.py", "--ignore", "X"], "--ignore: there is no code 'X'; the families are MOV, SYN"),
        (["--explain", "SYN999"], "--explain: there is no code 'SYN999'; did you mean SYN"),
        (["train.py", "--exclude", "!"], "--exclude: '!' is no pattern as in .gitignore"),
        (["train.py", "--min-priority", "urgent"], "--min-priority takes one of"),
        (["train.py", "--min-confidence", "high"], "--min-confidence takes one of"),
        (["train.py", "--unsafe-fixes"], "give one of them as well"),
        (["train.py", "--baseline", "none.json"], "there is no baseline none.json"),
        (["train.py", "--baseline", "train.py"], "cannot be read"),
        (["train.py", "--write-baseline", "no/where.json"], "there is no directory"),
        (["train.py", "--out", "."], "is a directory"),
    ],
)
def test_wrong_use_is_one_clear_line_and_writes_nothing(
    arguments: list[str], said: str, audit: Any, here: Path
) -> None:
    ran = audit(*arguments)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""
    assert [path.name for path in here.iterdir()] == ["train.py"]
    assert Path("train.py").read_text(encoding="utf-8") == LOOP


def test_fix_applies_what_is_safe_and_unsafe_fixes_the_rest(audit: Any) -> None:
    ran = audit("train.py", "--fix")
    assert ran.code == 1
    assert Path("train.py").read_text(encoding="utf-8") == FIXED
    assert "2 findings (1 high, 1 low) in 1 file; 1 finding fixed" in ran.out
    assert audit("train.py", "--fix", "--unsafe-fixes").code == 1
    assert Path("train.py").read_text(encoding="utf-8") == FIXED_ALL
    Path("train.py").write_text(FIXED_ALL.replace("    x.item()\n", ""), encoding="utf-8")
    assert audit("train.py", "--fix").code == 0


def test_a_fix_keeps_encoding_line_ends_mode_and_links(audit: Any, here: Path) -> None:
    data = b"# -*- coding: latin-1 -*-\r\n# caf\xe9\r\nx.to(d)\r\n"
    Path("old.py").write_bytes(data)
    Path("old.py").chmod(0o751)
    Path("marked.py").write_bytes(b"\xef\xbb\xbfx.to(d)  # \xe2\x82\xac")
    (here / "dir").mkdir()
    Path("dir/link.py").symlink_to(here / "old.py")
    assert audit("dir/link.py", "marked.py", "--fix").code == 0
    assert Path("old.py").read_bytes() == data.replace(b"to(d)", b"to(d, non_blocking=True)")
    assert stat.S_IMODE(Path("old.py").stat().st_mode) == 0o751
    assert Path("dir/link.py").is_symlink()
    assert Path("marked.py").read_bytes() == b"\xef\xbb\xbfx.to(d, non_blocking=True)  # \xe2\x82\xac"
    assert sorted(path.name for path in here.iterdir()) == ["dir", "marked.py", "old.py", "train.py"]


def test_a_file_that_was_changed_meanwhile_is_left_alone(audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any, **options: Any) -> Any:
        outcome = run(*arguments, **options)
        Path("train.py").write_text("new = 1\n", encoding="utf-8")
        return outcome

    monkeypatch.setattr("whet_audit.audit.run", slow)
    ran = audit("train.py", "--fix")
    assert ran.code == 2
    assert ran.err == "train.py: not fixed: it was changed meanwhile\n"
    assert Path("train.py").read_text(encoding="utf-8") == "new = 1\n"


def test_a_file_that_cannot_be_written_stays_whole(audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("second.py").write_text("x.to(d)\n", encoding="utf-8")
    real = Path.replace

    def full(path: Path, target: Path) -> Path:
        if target.name == "train.py":
            raise OSError(28, "No space left on device")
        return real(path, target)

    monkeypatch.setattr(Path, "replace", full)
    ran = audit("train.py", "second.py", "--fix")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert "train.py: not fixed: " in ran.err
    assert "No space left" in ran.err
    assert Path("train.py").read_text(encoding="utf-8") == LOOP
    assert Path("second.py").read_text(encoding="utf-8") == "x.to(d, non_blocking=True)\n"


def test_diff_writes_nothing_and_can_be_applied(audit: Any, here: Path) -> None:
    Path("train.py").write_bytes(LOOP.replace("\n", "\r\n").encode() + b"# \x0c\r\nx.to(d)")
    before = Path("train.py").read_bytes()
    ran = audit("train.py", "--diff")
    assert ran.code == 1
    assert ran.err == "2 findings would be fixed in 1 file\n"
    assert Path("train.py").read_bytes() == before
    done = subprocess.run(["patch", "--binary", "-p1"], input=ran.out.encode(), cwd=here, capture_output=True)
    if done.returncode == 127:
        pytest.skip("no patch(1)")
    assert done.returncode == 0, done.stdout
    assert Path("train.py").read_bytes() == before.replace(b"to(device)", b"to(device, non_blocking=True)").replace(
        b"to(d)", b"to(d, non_blocking=True)"
    )


def test_a_baseline_leaves_only_what_is_new(audit: Any) -> None:
    ran = audit("train.py", "--write-baseline", "known.json")
    assert ran.code == 0
    assert ran.err == "3 findings written to known.json\n"
    assert audit("train.py", "--baseline", "known.json").code == 0
    Path("train.py").write_text(f"import x\n{LOOP}y.item()\n".replace("    x.cuda()\n", ""), encoding="utf-8")
    ran = audit("train.py", "--baseline", "known.json", "--json")
    assert ran.code == 1
    content = json.loads(ran.out)
    assert [finding["line"] for finding in content["findings"]] == [5]
    assert content["summary"] | {"num_known": 2, "num_gone": 1} == content["summary"]
    Path("pyproject.toml").write_text('[tool.whet.audit]\nbaseline = "known.json"', encoding="utf-8")
    assert len(codes(audit("train.py", "--json"))) == 1


def test_known_findings_are_not_fixed(audit: Any) -> None:
    audit("train.py", "--write-baseline", "known.json")
    assert audit("train.py", "--baseline", "known.json", "--fix").code == 0
    assert Path("train.py").read_text(encoding="utf-8") == LOOP


def test_notebooks_are_audited_by_cell_and_not_fixed(audit: Any) -> None:
    cells = [
        {"cell_type": "markdown", "source": "x"},
        {"cell_type": "code", "source": ["%time\n", "x.to(d)\n", "y = 1"]},
    ]
    Path("n.ipynb").write_text(json.dumps({"cells": [*cells, {"cell_type": "code", "source": LOOP}]}), encoding="utf-8")
    before = Path("n.ipynb").read_bytes()
    ran = audit("n.ipynb", "--fix", "--output-format", "concise")
    assert ran.code == 1
    lines = ran.out.splitlines()
    for place in ("cell 2:2:1", "cell 3:2:5"):
        assert any(line.startswith(f"n.ipynb:{place}: MOV101 ") for line in lines)
    assert lines[-1] == "notebooks are not fixed automatically"
    assert Path("n.ipynb").read_bytes() == before
    loop = json.loads(audit("n.ipynb", "--json").out)["findings"][1]["loop"]
    assert loop["text"] == "training loop at n.ipynb:cell 2:1"


@pytest.mark.parametrize("name", ["full", "concise", "json", "github", "sarif"])
def test_out_takes_the_report_and_the_terminal_the_summary(name: str, audit: Any) -> None:
    printed = audit("train.py", "--output-format", name)
    ran = audit("train.py", "--output-format", name, "--out", "report")
    assert Path("report").read_text(encoding="utf-8") == printed.out
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[-1] == "written to report"


def test_explain(audit: Any) -> None:
    ran = audit("--explain", "mov101")
    assert ran.code == 0
    assert ran.out.startswith("MOV101 to-call: a call in every step.\n\nFinds       A call")
    assert ran.out.endswith("Priority    medium\n")
    assert audit("--explain", "to-call").out == ran.out
    assert [line[:6] for line in audit("--explain", "MOV").out.splitlines()] == ["MOV101", "MOV102"]


def test_names_that_are_no_text_are_printed_all_the_same(audit: Any, here: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    try:
        Path(name).write_text(LOOP, encoding="utf-8")
    except OSError:
        pytest.skip("this file system takes text only")
    for output_format in ("full", "concise", "json", "github", "sarif"):
        assert audit(name, "--output-format", output_format).code == 1
        assert audit(name, "--output-format", output_format, "--out", "report").code == 1


def test_loads_nothing_heavy(here: Path) -> None:
    """What makes it start in under 0.2 s, which benchmarks/audit_speed.py measures."""
    code = (
        "import sys\nfrom whet_audit.cli import main\n"
        "print(main(['clean.py']), {'torch', 'numpy', 'libcst', 'pydantic', 'jinja2', 'whet'} & set(sys.modules))"
    )
    Path("clean.py").write_text("x = 1\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "No findings in 1 file\n0 set()\n"


def test_the_pre_commit_hook_calls_what_is_there(audit: Any) -> None:
    text = (Path(__file__).parents[3] / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    hook = dict(line[2:].split(": ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert hook["id"] == "whet-audit"
    assert hook["require_serial"] == "true"  # files are looked at together
    program, *arguments = hook["entry"].split()
    assert program == PROGRAM
    assert audit(*arguments, "train.py").code == 1
