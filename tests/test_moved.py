"""Names that have moved are found at their old places too, for one version."""

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("whet.traces.report", "whet.trace_profiler.report", "analyse_file"),
        ("whet.server.batcher", "whet.batching.batcher", "DynamicBatcher"),
    ],
)
def test_the_old_place_warns_and_gives_the_same(old: str, new: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} has moved to {new}.{name}"):
        found = getattr(import_module(old), name)
    assert found is getattr(import_module(new), name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        import_module(old).nothing  # noqa: B018
