"""Keep gradients where they are while a proof looks at them, whatever a technique would do with them."""

import contextlib
from collections.abc import Iterator

_KEPT = [False]


def are_kept() -> bool:
    """Return whether a proof is being made, so that backward must leave gradients where they are."""
    return _KEPT[0]


@contextlib.contextmanager
def kept_gradients() -> Iterator[None]:
    """Have techniques that use gradients in backward leave them, and update nothing."""
    _KEPT[0] = True
    try:
        yield
    finally:
        _KEPT[0] = False
