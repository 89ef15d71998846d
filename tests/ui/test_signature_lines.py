"""help() of a public function shows a parameter on each line, with short names of types."""

import inspect
import pydoc
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import pytest

import whet
from whet.ui.signature_lines import show_by_line


class How(StrEnum):
    WAIT = "wait"


def test_help_has_a_line_for_each_parameter() -> None:
    def much(
        first: Sequence[Mapping[str, Path]] = (),
        *,
        how: str = How.WAIT,
        file: str = "out.dir/report.html",
        made: Callable[..., None] = lambda: None,
        size: float | None = None,
    ) -> Path | None:
        """Do much."""

    show_by_line(much)
    show_by_line(much)
    assert pydoc.plain(pydoc.render_doc(much)).splitlines()[2:11] == [
        "much(",
        "    first: Sequence[Mapping[str, Path]] = (),",
        "    *,",
        "    how: str = 'wait',",
        "    file: str = 'out.dir/report.html',",
        "    made: Callable[..., None] = ...,",
        "    size: float | None = None,",
        ") -> Path | None",
        "    Do much.",
    ]
    assert inspect.signature(much).parameters["how"].default is How.WAIT


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="this Python does so itself")
def test_the_text_of_a_later_python_s_signature_is_asked_for_by_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect.Signature, "format", inspect.Signature.__str__, raising=False)
    monkeypatch.setattr(inspect.Signature, "__str__", lambda self: self.format())

    def little(path: Path) -> None: ...

    show_by_line(little)
    assert str(inspect.signature(little)) == "(path: Path) -> None"


def test_a_short_signature_stays_on_one_line() -> None:
    def little(path: Path, *, much: bool = False) -> None: ...

    show_by_line(little)
    assert str(inspect.signature(little)) == "(path: Path, *, much: bool = False) -> None"


@pytest.mark.parametrize("name", [n for n in whet.__all__ if inspect.isfunction(getattr(whet, n))])
def test_no_line_of_a_public_function_is_long(name: str) -> None:
    assert max(map(len, str(inspect.signature(getattr(whet, name))).splitlines())) <= 130
