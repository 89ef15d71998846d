"""Let a notebook show a record, which knows nothing of how it is shown."""

from collections.abc import Mapping
from importlib import import_module

_views: dict[str, str] = {}


def show_records(views: Mapping[str, str]) -> None:
    """Say what shows each kind of record: the dotted name of its class -> that of a function from a record to HTML."""
    _views.update(views)


class Shown:
    """Make a record one that notebooks show as HTML, by the function that `show_records` was told."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(self).__mro__)
        place = next((_views[name] for name in names if name in _views), None)
        if place is None:
            return None
        module, _, function = place.rpartition(".")
        page: str = getattr(import_module(module), function)(self)
        return page
