"""What looks for the holders of tensors thaws all that was frozen; it is frozen again for the tests that follow."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def frozen_again() -> Iterator[None]:
    yield
    gc.collect()
    gc.freeze()
