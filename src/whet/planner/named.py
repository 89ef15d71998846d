"""Find what a name stands for, and say what is nearest where there is none."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from whet.errors import OptionError

_Found = TypeVar("_Found")


def found_by_name(known: Mapping[str, _Found], name: str, what: str, where: str = "") -> _Found:
    """Return what a name stands for.

    Args:
        what: What it names, in the singular.
        where: The beginning of the message.

    Raises:
        OptionError: There is none; the message has the nearest name and all others.
    """
    wanted = name.strip().lower()
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
    meant = f"; did you mean {near[0]}?" if near else ";"
    raise OptionError(f"{where}there is no {what} {name!r}{meant} whet knows {', '.join(sorted(known))}")
