import pytest

from whet.measure.allocator import STEADY, steady


def test_malloc_is_left_as_the_user_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "LD_PRELOAD", "GLIBC_TUNABLES", *STEADY):
        monkeypatch.delenv(name, raising=False)
    assert steady() == STEADY
    monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so.2")
    assert steady() == {}
