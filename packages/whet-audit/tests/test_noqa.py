from collections.abc import Callable

import pytest

from whet_audit.collect import SourceFile
from whet_audit.finding import Finding
from whet_audit.noqa import without_silenced

Make = Callable[..., Finding]


def is_kept(finding: Finding, text: str) -> bool:
    return without_silenced([finding], [SourceFile(finding.path, text)]) == [finding]


@pytest.mark.parametrize(
    ("comment", "kept"),
    [
        ("# noqa", False),
        ("#noqa", False),
        ("# NoQA", False),
        ("# noqa: SYN101", False),
        ("# noqa:syn101", False),
        ("# noqa : SYN101", False),
        ("# noqa: SYN", False),
        ("# noqa: E501, SYN101", False),
        ("# noqa: E501 SYN101", False),
        ("# noqa: MOV,SYN", False),
        ("# noqa: E501,SYN101,W1 - the sync is wanted", False),
        ("# noqa: SYN101 - wanted", False),
        ("# type: ignore  # noqa: SYN101", False),
        ("# noqa: E501  # noqa: SYN101", False),
        ("# whet: noqa", False),
        ("# whet: noqa: SYN101", False),
        ("# WHET:NOQA: syn1", False),
        ("", True),
        ("# noqa: E501", True),
        ("# noqa: S101", True),
        ("# noqa: SYN102", True),
        ("# noqa: SYN1011", True),
        ("# noqa: MOV", True),
        ("# noqa: because it is fast", True),
        ("# noqa:", True),
        ("# noqa-like words", True),
        ("# no qa", True),
        ("# ruff: noqa", True),
        ("# flake8: noqa: SYN101", True),
        ("# whet: noqa: MOV", True),
        ("; s = '# noqa'", True),
    ],
)
def test_what_a_comment_silences(comment: str, kept: bool, make_finding: Make) -> None:
    text = f"for x in loader:\n    loss = f(x)\n    loss.item()  {comment}\n    other()\n"
    assert is_kept(make_finding(at=(3, 4, 3, 15)), text) is kept


LONG = """\
for x in loader:
    print(  {}
        'loss',  {}
        loss
        .item(),  {}
        'step',  {}
    )  {}
    y = 1  {}
"""


@pytest.mark.parametrize(("at", "kept"), [(0, False), (1, True), (2, False), (3, True), (4, False), (5, True)])
def test_in_a_statement_of_many_lines_the_first_the_last_and_its_own_count(
    at: int, kept: bool, make_finding: Make
) -> None:
    comments = ["# noqa: SYN101" if index == at else "" for index in range(6)]
    assert is_kept(make_finding(at=(5, 8, 5, 15)), LONG.format(*comments)) is kept
    if at != 2:
        assert is_kept(make_finding(at=(4, 8, 4, 12)), LONG.format(*comments)) is kept


def test_a_loop_is_silenced_at_its_head_and_not_in_its_body(make_finding: Make) -> None:
    loop = make_finding(at=(1, 0, 3, 9))
    assert not is_kept(loop, "for x in y:  # noqa\n    a\n    b()\n")
    assert is_kept(loop, "for x in y:\n    a\n    b()  # noqa\n")


def test_a_line_behind_a_multi_line_string(make_finding: Make) -> None:
    text = 's = """\n# noqa\n"""\nx.item()\nx.item()  # noqa\n'
    assert is_kept(make_finding(at=(2, 0, 2, 8)), text)
    assert is_kept(make_finding(at=(4, 0, 4, 8)), text)
    assert not is_kept(make_finding(at=(5, 0, 5, 8)), text)


@pytest.mark.parametrize(
    ("first", "kept"),
    [
        ("# whet: noqa", False),
        ("    # whet: noqa: SYN", False),
        ("# whet: noqa: MOV", True),
        ("# noqa", True),
        ("x = 1  # whet: noqa", True),
    ],
)
def test_on_a_line_of_its_own_it_counts_for_the_file(first: str, kept: bool, make_finding: Make) -> None:
    assert is_kept(make_finding(at=(3, 0, 3, 8)), f"{first}\n\nx.item()\n") is kept


def test_files_are_kept_apart(make_finding: Make) -> None:
    one, two = make_finding(path="one.py", at=(1, 0, 1, 1)), make_finding(path="two.py", at=(1, 0, 1, 1))
    files = [SourceFile("one.py", "x  # noqa\n"), SourceFile("two.py", "x\n")]
    assert without_silenced([one, two], files) == [two]


def test_line_ends_of_windows_and_of_old_macs(make_finding: Make) -> None:
    for end in ("\r\n", "\r"):
        text = end.join(["for x in y:", "    z", "    x.item()  # noqa", ""])
        assert not is_kept(make_finding(at=(3, 4, 3, 12)), text)
