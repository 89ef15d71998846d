"""Name the techniques without importing them: each is a file of its name, in the folder of its stage."""

import difflib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from whet.errors import OptionError
from whet.techniques import FOLDERS, FOLLOWING

_TRAINING = "training"  # the folder of those for a training loop
_MOST_NEAR = 4
_LEAST_STEM, _STEM = 4, 6  # letters of a word that stand for its forms: quanti for quantise, quantised and quantisation


@cache
def technique_names() -> tuple[str, ...]:
    """Return the names of the techniques for a model that is called."""
    return tuple(sorted(path.stem for path in _files() if path.parent.name != _TRAINING))


@cache
def training_technique_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _files() if path.parent.name == _TRAINING))


def check_technique(name: str) -> None:
    """Raise OptionError where there is no technique of a name, or not yet. The message names the nearest ones."""
    known = (*technique_names(), *(one for one in training_technique_names() if one not in technique_names()))
    if name not in known and name in FOLLOWING:
        raise OptionError(f"{name} cannot be used yet: {FOLLOWING[name]}")
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
        raise OptionError(f"there is no technique {name!r}; {hint}")


def check_excluded(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise OptionError where a technique that a search is to leave out does not exist."""
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {' or '.join(near)}? There are" if near else "there are"
            raise OptionError(f"there is no technique {name!r} to exclude; {hint}: {', '.join(known)}")


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return the names that somebody may have meant: those that share whole words with what was typed, then close ones.

    Short names of the field, such as "sdpa" or "int8", are far from every whole name by their letters. Where no name is
    near, those come whose cards speak most of the word, as of "quantization".
    """
    typed = name.strip().lower().replace("-", "_").replace(" ", "_")
    if len(typed) < 2:
        return []
    containing = [one for one in known if typed in one or one in typed]
    close = difflib.get_close_matches(typed, known, n=_MOST_NEAR, cutoff=0.6)
    found = list(dict.fromkeys([*[one for one in close if one in containing], *containing, *close]))[:_MOST_NEAR]
    return found or _spoken({typed[:_STEM], typed.replace("z", "s")[:_STEM]}, known)


def _spoken(stems: set[str], known: Sequence[str]) -> list[str]:
    """Return the techniques whose cards have a part of a word, as it may be spelt, most often first."""
    if min(map(len, stems)) < _LEAST_STEM:
        return []
    cards = {path.stem: path.read_text(encoding="utf-8").partition('"""\n\n')[0].lower() for path in _files()}
    counts = {one: sum(map(cards[one].count, stems)) for one in known if one in cards}
    return sorted((one for one, count in counts.items() if count), key=lambda one: -counts[one])[:_MOST_NEAR]


def _files() -> list[Path]:
    return [path for stage in FOLDERS for path in (Path(__file__).parent / stage).glob("[!_]*.py")]
