"""Let help() show the parameters of a public function one a line, with the short names of their types."""

import inspect
import re
from collections.abc import Callable
from typing import Any

# a default that is an enum's member, text, a function, and the "collections.abc." of "collections.abc.Sequence"
_PARTS = re.compile(
    r"<\w+\.\w+: (?P<value>'[^']*'|\d+)>|(?P<text>'[^']*')|<function .*? at \w+>|(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])"
)


class ByLine(inspect.Signature):
    """Write a parameter on each line, where one line does not hold all of them."""

    _WIDTH = 100

    def __str__(self) -> str:
        # A plain signature, since from Python 3.13 on the inherited text is that of `format`, which is ours.
        text = _short(str(inspect.Signature(list(self.parameters.values()), return_annotation=self.return_annotation)))
        if len(text) <= self._WIDTH:
            return text
        lines, is_by_name = list[str](), False
        for one in self.parameters.values():
            if one.kind is one.KEYWORD_ONLY and not is_by_name:
                lines.append("    *,")
            is_by_name |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
            lines.append(f"    {_short(str(one))},")
        gives = self.return_annotation
        end = "" if gives is self.empty else f" -> {_short(inspect.formatannotation(gives))}"
        return "\n".join(["(", *lines, f"){end}"])

    def format(self, **_: Any) -> str:
        """Return the text, for Python 3.13's help()."""
        return str(self)


def show_by_line(function: Callable[..., Any]) -> None:
    """Give a function such a signature, once."""
    if "__signature__" not in vars(function):
        found = inspect.signature(function)
        vars(function)["__signature__"] = ByLine(
            list(found.parameters.values()), return_annotation=found.return_annotation
        )


def _short(text: str) -> str:
    """Return a part of a signature without modules' names, with the values of enums, and with ... for functions."""

    def part(found: re.Match[str]) -> str:
        return found["value"] or found["text"] or ("..." if found[0].startswith("<") else "")

    return _PARTS.sub(part, text)
