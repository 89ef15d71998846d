"""How many layers of a class a model runs one after the other: by how often its constructors make them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from whet_audit.frequency import Frequencies, repeats
from whet_audit.project import Project
from whet_audit.source import COMPREHENSIONS, Class

_LAYERS = 12  # of a stack whose height the code does not say: that of small transformers
_MOST = 100


class Depths:
    """Counts the objects of a class that a model holds."""

    def __init__(self, project: Project, frequencies: Frequencies) -> None:
        self._project = project
        self._frequencies = frequencies
        self._known: dict[Class, tuple[int, str]] = {}

    def of(self, cls: Class | None) -> tuple[int, str]:
        """The number of layers of a class in one model, the most of all places that make it, and what that assumes."""
        if cls is None:
            return 1, ""
        if cls not in self._known:
            self._known[cls] = 1, ""  # while it is found out: a class that holds itself ends here
            self._known[cls] = max(self._made(cls), default=(1, ""), key=lambda one: one[0])
        return self._known[cls]

    def _made(self, cls: Class) -> Iterator[tuple[int, str]]:
        """For each place in another class where objects are made: how many of them there are in one model."""
        for at, call in self._project.named(cls.qualname.rpartition(".")[2]):
            target = self._project.target(at.module, call)
            owner = at.module.class_of(call)
            if target is None or target.name != "__init__" or target is not self._project.method(cls, "__init__"):
                continue
            if owner is None or owner is cls:
                continue
            number, assumed = self.of(owner)
            for loop in repeats(at.module, call, at.node):
                one = loop.generators[0] if isinstance(loop, COMPREHENSIONS) else loop
                is_counted = isinstance(one, ast.comprehension | ast.For | ast.While)
                turns = self._frequencies.turns(at.module, one) if is_counted else None  # type: ignore[arg-type]
                number *= _LAYERS if turns is None else max(1, turns)
                assumed = f"{_LAYERS} layers" if turns is None else assumed
            yield min(number, _MOST), assumed
