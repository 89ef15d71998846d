import fnmatch
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet_audit.globs import matches


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("tests", "tests/a.py", True),
        ("tests", "src/tests/a.py", True),
        ("tests", "tests.py", False),
        ("tests/", "src/tests/a.py", True),
        ("*_old.py", "src/train_old.py", True),
        ("tests/*", "tests/a.py", True),
        ("tests/*", "tests/deep/a.py", True),
        ("tests/*", "src/tests/a.py", False),
        ("tests/*.py", "tests/deep/a.py", False),
        ("**/tests/*.py", "a/b/tests/c.py", True),
        ("**/tests/*.py", "tests/c.py", True),
        ("src/**/x.py", "src/x.py", True),
        ("src/**/x.py", "src/a/b/x.py", True),
        ("src/**", "src/a/b/x.py", True),
        ("src/**", "src", False),
        ("./src/a.py", "src/a.py", True),
        ("src/a.py", "src/aXpy", False),
        ("s[rx]c/a.py", "sxc/a.py", True),
        ("s[!r]c/a.py", "src/a.py", False),
        ("a+b(1).py", "a+b(1).py", True),
        ("src", "src", True),
        ("src/", "src", True),
        ("!src", "src", False),
        ("# src", "# src", False),
        ("[!]", "a", False),
    ],
)
def test_patterns(pattern: str, path: str, fits: bool) -> None:
    assert matches(path, pattern) is fits


names = st.text("abc.*?", min_size=1, max_size=6)


@given(st.text("abc.", min_size=1, max_size=6), names)
def test_one_part_is_as_the_standard_library_has_it(name: str, pattern: str) -> None:
    if pattern.startswith("."):
        pattern = f"a{pattern}"
    assert matches(name, pattern) == fnmatch.fnmatchcase(name, pattern)


@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=4), names)
def test_without_a_slash_any_part_counts(parts: list[str], pattern: str) -> None:
    if pattern.startswith("."):
        pattern = f"a{pattern}"
    path = str(PurePosixPath(*parts))
    assert matches(path, pattern) == any(fnmatch.fnmatchcase(part, pattern) for part in parts)
