"""The operators on each build of the kernels that this processor can run, and on torch where there is none."""

import pytest

from whet.kernels import dispatch
from whet.kernels.build import Isa, Library, library, supported


@pytest.fixture(params=[*Isa])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """The operators run this build."""
    isa = Isa(request.param)
    if isa not in supported():
        pytest.skip(f"this processor cannot run {isa}")
    found = library(isa)
    monkeypatch.setattr(dispatch, "kernels", lambda: found)
    return found


@pytest.fixture(params=[*Isa, "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The operators run this build, or their references in torch."""
    name = request.param
    if name != "torch" and name not in supported():
        pytest.skip(f"this processor cannot run {name}")
    found = None if name == "torch" else library(Isa(name))
    monkeypatch.setattr(dispatch, "kernels", lambda: found)
    return str(name)
