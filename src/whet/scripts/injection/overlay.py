"""Copy a directory to run changed code in, and leave the original alone.

Code and other small files are copied, up to 512 MB in all. Large files, and folders such as .git, become links.
New files that a script writes are made in the copy.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

_COPIED_BYTES = 16 * 2**20  # a file that is larger is linked
_MOST_FILES = 20_000
_MOST_BYTES = 512 * 2**20  # of all copied files
_LINKED = frozenset(".git .hg .svn .venv venv node_modules __pycache__ .mypy_cache .ruff_cache .pytest_cache".split())


def make_overlay(source: Path, target: Path, changed: Mapping[Path, str | bytes]) -> Path:
    """Copy `source` to `target`, with new contents for some files. Return the target.

    The target may lie inside the source, as when a script in /tmp is copied to /tmp. The folder that holds the target
    is then left out of the copy. `changed` holds the new contents by absolute path below `source`.

    Raises:
        OSError: The directory cannot be read, or the copy cannot be written.
    """
    source, target = source.resolve(), target.resolve()
    inside = {path.resolve().relative_to(source): content for path, content in changed.items()}
    needed = {parent for path in inside for parent in path.parents}
    budget = [_MOST_FILES, _MOST_BYTES]
    _copy(source, target, Path(), needed, budget)
    for path, content in inside.items():
        place = target / path
        if place.is_symlink() or place.exists():
            place.unlink()
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return target


def _copy(source: Path, target: Path, inside: Path, needed: set[Path], budget: list[int]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir()):
        if target.is_relative_to(entry):
            continue
        place, path = target / entry.name, inside / entry.name
        if entry.is_symlink() or (not entry.is_dir() and not entry.is_file()):
            place.symlink_to(entry.resolve())
        elif entry.is_dir():
            if (entry.name in _LINKED or budget[0] <= 0) and path not in needed:
                place.symlink_to(entry)
            else:
                _copy(entry, place, path, needed, budget)
        elif entry.stat().st_size > min(_COPIED_BYTES, budget[1]):
            place.symlink_to(entry)
        else:
            shutil.copy2(entry, place)
            budget[0] -= 1
            budget[1] -= entry.stat().st_size
