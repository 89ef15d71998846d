"""Say which options of tuning go with which kind of target, without importing what any of them needs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from whet.errors import OptionError

KindWord = Literal["inference", "training", "script", "stream"]
_NAMES: Mapping[KindWord, str] = {
    "inference": "a model",
    "training": "a training",
    "script": "a script",
    "stream": "a stream",
}
PLAN_TECHNIQUES = (
    "one_process",
    "zero_1",
    "zero_2",
    "zero_3",
    "bucket_size",
    "static_graph",
    "gradients_16_bit",
    "powersgd",
)
"""What --nproc tries of the plan beside the techniques for training."""

_TRAINED: frozenset[KindWord] = frozenset({"training", "script"})
_STREAM: frozenset[KindWord] = frozenset({"stream"})
_PROVED: frozenset[KindWord] = frozenset({"inference", "training", "script"})
_ALL: frozenset[KindWord] = frozenset({"inference", "training", "script", "stream"})
_OF_KINDS: Mapping[str, frozenset[KindWord]] = {
    "--train": frozenset({"training"}),
    "--training": frozenset({"inference"}),
    "--objective memory": _PROVED,
    "--objective size": frozenset({"inference"}),
    "--objective throughput": _PROVED,
    "--max-slowdown": _TRAINED,
    "--allow-batch": frozenset({"training"}),
    "--nproc": frozenset({"training"}),
    "--max-memory": _PROVED,
    "--storage": _ALL,
    "--workers": frozenset({"inference", "training"}),
    "--resume": _ALL,
    "--steps": frozenset({"script", "stream"}),
    **dict.fromkeys(("--source", "--sink", "--frame-budget", "--sampler", "--prompt", "--data"), _STREAM),
}
_INSTEAD: Mapping[tuple[str, KindWord], str] = {
    ("--nproc", "script"): "give the processes to its own launcher: -- torchrun --nproc-per-node N train.py",
    ("--workers", "script"): "its copies run on this machine; start whet tune --storage URL on each machine instead",
    ("--workers", "stream"): "start whet tune --storage URL on each machine instead",
    ("--allow-batch", "inference"): "whet bench measures a model at many batch sizes",
    ("--objective size", "training"): "its objectives are throughput and memory",
    ("--objective size", "script"): "its objectives are throughput and memory",
    ("--objective memory", "stream"): "a stream has --frame-budget and --max-drop",
    ("--objective size", "stream"): "a stream has --frame-budget and --max-drop",
    ("--max-memory", "stream"): "a stream has --frame-budget and --max-drop",
}


def check_options(given: Iterable[str], target: str, kinds: Iterable[KindWord]) -> None:
    """Check that each option that was given has a meaning for a target.

    Args:
        given: The options, as "--resume" or "--objective memory".
        kinds: The kinds that the target may be of, as far as its name tells.

    Raises:
        OptionError: An option has none. The message says what it goes with.
    """
    possible = list(kinds)
    for option in given:
        fitting = _OF_KINDS.get(option)
        if fitting is None or fitting.intersection(possible):
            continue
        goes = _either([name for word, name in _NAMES.items() if word in fitting])
        instead = _INSTEAD.get((option, possible[0]))
        told = f"{option} goes with {goes}, and {target} is {_NAMES[possible[0]]}"
        raise OptionError(f"{told}; {instead}" if instead else f"{told}; leave it out")


def check_nproc(number: int | None) -> None:
    """Check the number of processes that share a training; None where none was given.

    Raises:
        OptionError: There are fewer than 2.
    """
    if number is not None and number < 2:
        raise OptionError(f"--nproc takes 2 processes or more, and got {number}; for one process leave it out")


def ray_address(workers: str) -> str:
    """Return the address in "ray=ADDRESS"; "" for "ray" alone.

    Raises:
        OptionError: It is neither.
    """
    word, mark, address = workers.partition("=")
    if word != "ray" or (mark and not address):
        raise OptionError(f"--workers takes ray, or ray=HOST:PORT for a cluster's head; got {workers!r}")
    return address


def _either(names: Sequence[str]) -> str:
    """Return names as "a, b or c"."""
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
