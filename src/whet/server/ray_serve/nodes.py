"""Look at each machine of a Ray cluster: whet's version there, the models' files, and the free memory."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from whet import __version__
from whet.errors import OptionError
from whet.measure.cgroup import free_memory
from whet.ui.figures import num_bytes


class Survey(NamedTuple):
    """Hold what one machine has.

    Attributes:
        files: A digest of each model directory's files by the directory; "" where there is none.
    """

    whet: str
    python: str
    free_bytes: int
    files: Mapping[str, str]


class Node(NamedTuple):
    """Hold a machine of the cluster that may run replicas, by its address."""

    address: str
    cpus: int
    survey: Survey


def survey(directories: Sequence[str]) -> Survey:
    """Return what this machine has of some model directories."""
    files = {one: digest(Path(one)) for one in directories}
    return Survey(__version__, platform.python_version(), free_memory(), files)


def digest(directory: Path) -> str:
    """Return a digest of the files' names and sizes, and of what the JSON files say; "" if it is no directory."""
    if not directory.is_dir():
        return ""
    found = hashlib.sha256()
    for file in sorted(one for one in directory.rglob("*") if one.is_file()):
        found.update(f"{file.relative_to(directory)} {file.stat().st_size}\n".encode())
        if file.suffix == ".json":
            found.update(file.read_bytes())
    return found.hexdigest()


def size_of(directory: Path) -> int:
    """Return the bytes of all files in a model's directory."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def check_same(nodes: Sequence[Node], here: Survey) -> None:
    """Check that all machines have this one's whet and model files.

    Raises:
        OptionError: One of them has not.
    """
    for node in nodes:
        if node.survey.whet != here.whet:
            raise OptionError(
                f"--ray: {node.address} has whet {node.survey.whet}, and this process has {here.whet}: "
                "install the same version on all machines"
            )
        for directory, files in here.files.items():
            found = node.survey.files.get(directory, "")
            if not found:
                raise OptionError(
                    f"--ray: {node.address} has no directory {directory}: put the model there on each machine, or on a "
                    "file system that they share"
                )
            if found != files:
                raise OptionError(
                    f"--ray: {node.address} has other files in {directory} than this machine: copy the model anew"
                )


def check_room(nodes: Sequence[Node], least: int, *, cpus: int, bytes_each: int | None) -> None:
    """Check that the machines hold at least `least` replicas.

    Args:
        cpus: The cores of each replica.
        bytes_each: The memory of each replica; None if memory is not to be checked.

    Raises:
        OptionError: They do not.
    """
    by_cores = [node.cpus // cpus for node in nodes]
    by_memory = [
        most if bytes_each is None else node.survey.free_bytes // bytes_each
        for node, most in zip(nodes, by_cores, strict=True)
    ]
    if sum(by_cores) < least:
        cores = " + ".join(str(node.cpus) for node in nodes) or "0"
        raise OptionError(
            f"--replicas {least}: with {cpus} of its {cores} cores each, the cluster holds {sum(by_cores)}; ask for "
            "fewer, give each fewer cores (--ray-cpus), or add machines"
        )
    if (held := sum(map(min, by_cores, by_memory))) < least:
        free = " + ".join(num_bytes(node.survey.free_bytes) for node in nodes)
        raise OptionError(
            f"--replicas {least}: each takes about {num_bytes(bytes_each or 0)} of memory, and the cluster ({free} "
            f"free) holds {held}; ask for fewer, or a smaller model or --memory"
        )


def cores_each(nodes: Sequence[Node], most: int) -> int:
    """Return how many cores each of `most` replicas gets, where nobody says so: an equal share, on one machine."""
    largest = max((node.cpus for node in nodes), default=1)
    share = max(1, min(largest, sum(node.cpus for node in nodes) // most))
    while share > 1 and sum(node.cpus // share for node in nodes) < most:
        share -= 1
    return share
