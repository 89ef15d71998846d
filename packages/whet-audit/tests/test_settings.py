from dataclasses import replace
from pathlib import Path

import pytest

from whet_audit.errors import AuditError
from whet_audit.finding import Confidence, Finding, Gain, Priority, Span
from whet_audit.settings import Settings, check_codes, read_settings

CODES = ("CMP101", "MOV101", "MOV102", "SYN101", "SYN102", "SYN110")


def write(path: Path, body: str, table: str = "[tool.whet.audit]") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{table}\n{body}\n", encoding="utf-8")


def on(settings: Settings, path: str = "") -> set[str]:
    return {code for code in CODES if settings.is_on(code, path)}


def test_without_a_table_everything_is_on(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "x = 1", table="[tool.other]")
    assert on(read_settings([tmp_path], CODES)) == set(CODES)


def test_everything_there_is(tmp_path: Path) -> None:
    body = """
    select = ["syn", "MOV101"]
    ignore = ["SYN110"]
    exclude = ["third_party", "old/*.py"]
    per-file-ignores = { "tests/*" = ["SYN"], "*_slow.py" = ["MOV101", "SYN102"] }
    baseline = "known.json"
    """
    write(tmp_path / "pyproject.toml", body)
    settings = read_settings([tmp_path / "src" / "a.py"], CODES)
    assert on(settings) == {"SYN101", "SYN102", "MOV101"}
    assert on(settings, str(tmp_path / "tests/a.py")) == {"MOV101"}
    assert on(settings, str(tmp_path / "src/very_slow.py")) == {"SYN101"}
    assert settings.baseline == tmp_path / "known.json"
    assert settings.is_excluded(tmp_path / "src/third_party/x.py")
    assert settings.is_excluded(tmp_path / "old/x.py")
    assert not settings.is_excluded(tmp_path / "src/old/x.py")


def test_paths_are_relative_to_the_file_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "pyproject.toml", 'per-file-ignores = { "tests/*" = ["ALL"] }\nexclude = ["tests/old"]')
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path / "tests")
    settings = read_settings([Path("a.py")], CODES)
    assert on(settings, "a.py") == set()
    assert on(settings, "../a.py") == set(CODES)
    assert settings.is_excluded(Path("old").absolute())


def test_the_nearest_table_counts(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", 'ignore = ["SYN"]')
    write(tmp_path / "a/pyproject.toml", 'ignore = ["MOV"]')
    write(tmp_path / "a/b/pyproject.toml", "x = 1", table="[tool.other]")
    (tmp_path / "c").mkdir()
    assert on(read_settings([tmp_path / "a/b/x.py"], CODES)) == {"CMP101", "SYN101", "SYN102", "SYN110"}
    assert on(read_settings([tmp_path / "a/b/x.py", tmp_path / "c"], CODES)) == {"CMP101", "MOV101", "MOV102"}


@pytest.mark.parametrize(
    ("select", "ignore", "given_select", "given_ignore", "expected"),
    [
        (None, (), None, ("SYN",), {"CMP101", "MOV101", "MOV102"}),
        (("SYN",), (), ("MOV",), (), {"MOV101", "MOV102"}),
        (("SYN",), ("SYN101",), None, ("SYN102",), {"SYN110"}),
        (None, ("SYN101",), ("SYN",), (), {"SYN102", "SYN110"}),
        (None, ("SYN101",), ("SYN101",), (), {"SYN101"}),
        (None, ("SYN",), ("SYN101",), (), {"SYN101"}),
        (None, (), ("SYN",), ("SYN",), set()),
        (None, (), ("SYN", "SYN101"), ("SYN1",), {"SYN101"}),
        (("SYN1",), ("SYN10",), None, (), {"SYN110"}),
        (None, ("ALL",), ("MOV",), (), {"MOV101", "MOV102"}),
        ((), (), None, (), set()),
    ],
)
def test_the_command_line_wins_and_the_more_exact_selector_decides(
    select: tuple[str, ...] | None,
    ignore: tuple[str, ...],
    given_select: tuple[str, ...] | None,
    given_ignore: tuple[str, ...],
    expected: set[str],
) -> None:
    assert on(Settings(select=select, ignore=ignore, given_select=given_select, given_ignore=given_ignore)) == expected


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('selct = ["SYN"]', "unknown key 'selct'; did you mean select?"),
        ("colour = 1", "unknown key 'colour'; there are select, ignore, exclude"),
        ('select = ["SYM101"]', "select: there is no code 'SYM101'; did you mean SYN101"),
        ('ignore = [""]', "ignore: there is no code ''"),
        ('select = "SYN"', "select must be a list of strings"),
        ("select = [1]", "select must be a list of strings"),
        ("exclude = true", "exclude must be a list of strings"),
        ('exclude = ["!"]', "'!' is no pattern as in .gitignore"),
        ('per-file-ignores = ["SYN"]', "per-file-ignores must be a table of lists"),
        ('per-file-ignores = { "a" = "SYN" }', "per-file-ignores must be a list of strings"),
        ('per-file-ignores = { "a" = ["XYZ"] }', "per-file-ignores: there is no code 'XYZ'; the families are CMP, MOV"),
        ("preview = 1", "preview must be true or false"),
        ('min-priority = "hi"', "min-priority takes one of 'low', 'medium', 'high'; got 'hi'"),
        ('min-confidence = "high"', "min-confidence takes one of 'perhaps', 'likely', 'sure'; got 'high'"),
        ("fail-on = 3", "fail-on takes one of 'low', 'medium', 'high'; got 3"),
        ("baseline = 1", "baseline must be the name of a file"),
        ('baseline = ""', "baseline must be the name of a file"),
        ("select = [", "pyproject.toml is damaged"),
    ],
)
def test_mistakes_are_one_clear_line(body: str, said: str, tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", body)
    with pytest.raises(AuditError) as caught:
        read_settings([tmp_path], CODES)
    assert said in str(caught.value)
    assert str(tmp_path / "pyproject.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_none(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "audit = 1", table="[tool.whet]")
    with pytest.raises(AuditError, match="must be a table"):
        read_settings([tmp_path], CODES)


def test_a_damaged_file_of_others_is_not_our_concern(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other", encoding="utf-8")
    assert on(read_settings([tmp_path], CODES)) == set(CODES)


def test_unknown_codes_come_with_what_may_have_been_meant() -> None:
    assert check_codes(["syn", " MOV101 ", "all"], CODES, "--select") == ("SYN", "MOV101", "ALL")
    with pytest.raises(AuditError, match=r"--select: there is no code 'MVO'; did you mean MOV\?"):
        check_codes(["MVO"], CODES, "--select")


def finding(priority: Priority, confidence: Confidence) -> Finding:
    gain = Gain(0.0, 0.1, "nothing")
    return Finding("SYN101", "item-in-loop", "a.py", Span(1, 0, 1, 1), "waits", priority, confidence, gain)


PREVIEWS = frozenset({"SYN101", "MOV102"})


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (Settings(), {"CMP101", "MOV101", "SYN102", "SYN110"}),
        (Settings(preview=True), set(CODES)),
        (Settings(select=("SYN",)), {"SYN102", "SYN110"}),
        (Settings(select=("SYN101", "MOV")), {"SYN101", "MOV101"}),
        (Settings(select=("SYN101",), given_select=("MOV102", "SYN")), {"MOV102", "SYN102", "SYN110"}),
        (Settings(given_select=("SYN101",), given_ignore=("SYN101",)), set()),
        (Settings(preview=True, ignore=("SYN",)), {"CMP101", "MOV101", "MOV102"}),
    ],
)
def test_rules_in_preview_are_off_unless_asked_for(chosen: Settings, expected: set[str]) -> None:
    assert on(replace(chosen, previews=PREVIEWS)) == expected


def test_what_is_only_perhaps_so_is_hidden_and_more_may_be() -> None:
    made = [finding(priority, confidence) for priority in Priority for confidence in Confidence]
    likely = [one for one in made if Settings().shows(one)]
    assert [one.confidence for one in likely] == [Confidence.HIGH, Confidence.MEDIUM] * 3
    chosen = Settings(min_priority=Priority.MEDIUM, min_confidence=Confidence.HIGH)
    assert [one.priority for one in made if chosen.shows(one)] == [Priority.HIGH, Priority.MEDIUM]
    assert all(map(Settings(min_confidence=Confidence.LOW).shows, made))


def test_levels_of_the_file(tmp_path: Path) -> None:
    write(
        tmp_path / "pyproject.toml",
        'preview = true\nmin-priority = "medium"\nmin-confidence = "perhaps"\nfail-on = "high"',
    )
    settings = read_settings([tmp_path], CODES)
    assert (settings.preview, settings.min_priority, settings.min_confidence, settings.fail_on) == (
        *(True, Priority.MEDIUM, Confidence.LOW, Priority.HIGH),
    )


def test_patterns_of_the_command_are_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    settings = Settings(root=tmp_path, exclude=("src/old",), given_exclude=("new/*.py",))
    assert settings.is_excluded(Path("old").absolute())
    assert settings.is_excluded(Path("new/a.py").absolute())
    assert not settings.is_excluded(tmp_path / "new/a.py")
