"""The tree of user errors: as drawn, and each caught as what it is."""

import pytest

from whet import errors
from whet.errors import InputsError, MissingExtra, ModelError, TargetError, WhetError, reason


def classes() -> list[type[WhetError]]:
    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, WhetError)]


def test_every_error_is_drawn_at_the_top_of_the_file() -> None:
    assert len(classes()) > 8
    for error in classes():
        assert error.__name__ in (errors.__doc__ or "")
        assert error.__doc__


def test_the_tree() -> None:
    assert issubclass(InputsError, TargetError)
    assert issubclass(ModelError, TargetError)
    assert not issubclass(WhetError, ValueError)


def test_a_missing_extra_says_how_to_get_it() -> None:
    with pytest.raises(
        WhetError, match=r"reading X needs xlib, which is not installed: pip install 'torch-whet\[x\]'"
    ) as e:
        raise MissingExtra("xlib", "x", "reading X")
    assert isinstance(e.value, MissingExtra)
    assert (e.value.package, e.value.extra) == ("xlib", "x")
    assert str(e.value).endswith("pip install 'torch-whet[x]', or in a clone of whet: pip install '.[x]'")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  one \n"), "one"),
        (ValueError(), "ValueError"),
        (ValueError(" \n"), "ValueError"),
        (KeyError("k"), "'k'"),
    ],
)
def test_the_reason_is_the_first_line_or_the_type(error: Exception, expected: str) -> None:
    assert reason(error) == expected
