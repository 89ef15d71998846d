"""A git reference checked out beside the work tree, for as long as it is measured."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from whet.errors import BaselineError


@dataclass(frozen=True)
class Tree:
    """Describe a directory with the code to be measured. A target's FILE.py is looked for in `working_directory`."""

    name: str  # as people know it
    root: Path
    working_directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """Python looks into this tree first, whatever of it is installed: in its root, and in src/ if there is one."""
        first = [str(path) for path in (self.working_directory, self.root / "src", self.root) if path.is_dir()]
        rest = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        return {"PYTHONPATH": os.pathsep.join([*dict.fromkeys(first), *rest])}


@contextmanager
def checked_out(reference: str, directory: Path | None = None) -> Iterator[tuple[Tree, Tree]]:
    """Yield the reference's tree and the work tree.

    The reference's tree is a git worktree in a temporary directory, which is removed at the end. `directory` is any
    directory inside the work tree; the current one, if not given.

    Raises:
        BaselineError: The directory lies in no git work tree, or the reference does not exist.
    """
    here = (directory or Path.cwd()).resolve()
    try:
        root = Path(_git(here, "rev-parse", "--show-toplevel"))
    except BaselineError as error:
        raise BaselineError(f"{here} is not in a git work tree; run --against where your code is") from error
    try:
        commit = _git(root, "rev-parse", "--verify", "--end-of-options", f"{reference}^{{commit}}")
    except BaselineError as error:
        raise BaselineError(
            f"git knows no commit {reference!r} here; fetch it, or name a branch, a tag or a commit"
        ) from error
    with tempfile.TemporaryDirectory(prefix="whet-against-") as scratch:
        other = Path(scratch) / "tree"
        _git(root, "worktree", "add", "--detach", "--quiet", str(other), commit)
        try:
            yield (
                Tree(_named(reference, commit), other, other / here.relative_to(root)),
                Tree(_work_tree(root), root, here),
            )
        finally:
            _git(root, "worktree", "remove", "--force", str(other))


def _named(reference: str, commit: str) -> str:
    return commit[:10] if commit.startswith(reference) else f"{reference} ({commit[:10]})"


def _work_tree(root: Path) -> str:
    """Return the name of the work tree for reports: HEAD, and whether files differ from it."""
    head = _git(root, "rev-parse", "--short=10", "HEAD")
    changed = [line for line in _git(root, "status", "--porcelain").splitlines() if line]
    if not changed:
        return f"the work tree ({head})"
    files = f"{len(changed)} changed file{'s' if len(changed) > 1 else ''}"
    return f"the work tree as it lies there ({head} with {files})"


def _git(directory: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, check=False, timeout=300
        )
    except FileNotFoundError as error:
        raise BaselineError(
            "--against needs git, which is not installed: install it (Debian: apt install git), or use --compare"
        ) from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise BaselineError(f"git {arguments[0]} failed: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout.strip()
