"""Find a script's own code: the script, and the modules beside it that it imports."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from whet.errors import TargetError
from whet_audit.collect import SourceFile, collect


def script_files(script: Path) -> list[SourceFile]:
    """Return the script and all that it imports from its own folder and below, the script first.

    Raises:
        TargetError: A file cannot be read as Python.
    """
    waiting, found = [script], dict[Path, SourceFile]()
    while waiting:
        path = waiting.pop(0)
        if path.resolve() in found:
            continue
        collected = collect([path])
        if collected.problems or not collected.files:
            raise TargetError(
                collected.problems[0].text if collected.problems else f"{path} cannot be read; give a Python file"
            )
        file = collected.files[0]
        found[path.resolve()] = file
        try:
            waiting += _local(ast.parse(file.text), path, script.parent)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise TargetError(f"{file.path} does not parse: {error}; mend it first") from error
    return list(found.values())


def _local(tree: ast.Module, path: Path, root: Path) -> Iterator[Path]:
    """Yield the files below `root` that a module's imports may name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            folder = root
            if node.level:
                folder = path.parent
                for _ in range(node.level - 1):
                    folder = folder.parent
            parts = node.module.split(".") if node.module else []
            yield from _files(folder, parts)
            for alias in node.names:
                yield from _files(folder, [*parts, alias.name])


def _files(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the module of a dotted name and the packages around it, as far as they are files."""
    for end in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:end])
        for candidate in (place.with_suffix(".py"), place / "__init__.py"):
            if candidate.is_file():
                yield candidate
