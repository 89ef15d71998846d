import json
from collections.abc import Callable
from pathlib import Path

import pytest

from whet_audit.baseline import baseline_text, read_baseline
from whet_audit.collect import SourceFile
from whet_audit.errors import AuditError
from whet_audit.finding import Finding

Make = Callable[..., Finding]
TEXT = "for x in y:\n    a.item()\n    a.item()\n    b.item()\n"


def at(make: Make, line: int, **fields: object) -> Finding:
    return make(at=(line, 4, line, 12), **fields)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TEXT, encoding="utf-8")
    return tmp_path


def written(findings: list[Finding], text: str = TEXT, name: str = "known.json") -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(baseline_text(findings, [SourceFile("train.py", text)], path.parent), encoding="utf-8")
    return path


def test_what_is_known_is_not_new_wherever_its_line_has_gone(make_finding: Make) -> None:
    path = written([at(make_finding, 2), at(make_finding, 4)])
    moved = SourceFile("train.py", "import x\n\n\nfor x in y:\n\tb . item()\n\ta.item()\n".replace(" . ", "."))
    found = [at(make_finding, 5), at(make_finding, 6)]
    matched = read_baseline(path).match(found, [moved])
    assert (matched.new, matched.num_known, matched.num_gone) == ((), 2, 0)


def test_one_more_of_the_same_is_new(make_finding: Make) -> None:
    path = written([at(make_finding, 2)])
    matched = read_baseline(path).match([at(make_finding, 2), at(make_finding, 3)], [SourceFile("train.py", TEXT)])
    assert matched.new == (at(make_finding, 3),)
    assert matched.num_known == 1


def test_another_code_file_or_line_is_new(make_finding: Make) -> None:
    path = written([at(make_finding, 2)])
    files = [SourceFile("train.py", TEXT), SourceFile("other.py", TEXT)]
    for finding in (at(make_finding, 2, code="SYN102"), at(make_finding, 2, path="other.py"), at(make_finding, 4)):
        assert read_baseline(path).match([finding], files).new == (finding,)


def test_those_that_are_gone_are_counted_where_they_were_looked_for(make_finding: Make) -> None:
    path = written([at(make_finding, 2), at(make_finding, 3), at(make_finding, 4, code="MOV101")])
    baseline = read_baseline(path)
    source = SourceFile("train.py", TEXT)
    assert baseline.match([at(make_finding, 2)], [source]).num_gone == 2
    assert baseline.match([], [source], lambda code, path: code == "SYN101").num_gone == 2
    assert baseline.match([], []).num_gone == 0  # the file is there and was not audited
    Path("train.py").unlink()
    assert baseline.match([], []).num_gone == 3


def test_paths_are_relative_to_the_baseline(make_finding: Make, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written([at(make_finding, 2)], name="ci/known.json").absolute()
    (here / "deep").mkdir()
    monkeypatch.chdir(here / "deep")
    finding = at(make_finding, 2, path=str(here / "train.py"))
    matched = read_baseline(path).match([finding], [SourceFile(str(here / "train.py"), TEXT)])
    assert matched.new == ()


def test_the_file_is_one_line_a_finding_in_order(make_finding: Make) -> None:
    findings = [at(make_finding, 4), at(make_finding, 2), at(make_finding, 3)]
    text = written(findings).read_text(encoding="utf-8")
    assert text == written(findings[::-1]).read_text(encoding="utf-8")
    assert json.loads(text) == {
        "format": 1,
        "findings": [
            {"path": "train.py", "code": "SYN101", "line": "a.item()", "count": 2},
            {"path": "train.py", "code": "SYN101", "line": "b.item()", "count": 1},
        ],
    }
    assert len(text.splitlines()) == 7
    assert json.loads(baseline_text([], [], Path())) == {"format": 1, "findings": []}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("\xff", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "no baseline of whet audit"),
        ('{"findings": []}', "no baseline of whet audit"),
        ('{"format": 2, "findings": []}', "has format 2, this version reads 1"),
        ('{"format": 1, "findings": {}}', "damaged"),
        ('{"format": 1, "findings": [1]}', "damaged"),
        ('{"format": 1, "findings": [{"path": "a", "code": "b", "line": "c"}]}', "damaged"),
        ('{"format": 1, "findings": [{"path": "a", "code": "b", "line": "c", "count": true}]}', "damaged"),
        ('{"format": 1, "findings": [{"path": "a", "code": "b", "line": "c", "count": 0}]}', "damaged"),
    ],
)
def test_what_is_no_baseline_is_one_clear_line(content: str, said: str) -> None:
    Path("known.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(AuditError) as caught:
        read_baseline(Path("known.json"))
    assert said in str(caught.value)
    assert "--write-baseline known.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_baseline() -> None:
    with pytest.raises(AuditError, match=r"there is no baseline none\.json; write it with --write-baseline none\.json"):
        read_baseline(Path("none.json"))
