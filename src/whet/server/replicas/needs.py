"""Compute what memory replicas take before any of them loads a model, in a process of its own.

The process that asks does without PyTorch, which reads the outlines of models.
"""

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from whet.errors import WhetError
from whet.measure.isolate import run_isolated
from whet.server.asked import Asked

_TIME_LIMIT_S = 300.0


@dataclass(frozen=True)
class Needs:
    """Hold the bytes that replicas take, without the state of sequences.

    Attributes:
        weights_bytes: The weights of language models. They exist once if the replicas share them.
        private_bytes: What each replica takes beside them: programs, logits, and what `whet tune` made.
        num_engines: How many language models each replica has. Each of them has state of sequences.
        cache: The directory of weights that have no room in memory.
    """

    weights_bytes: int
    private_bytes: int
    num_engines: int
    cache: str


def needs_of(asked: Asked) -> Needs:
    """Return what replicas take that serve this.

    Raises:
        WhetError: It cannot be served.
    """
    told = replace(asked, settings=replace(asked.settings, api_keys=())).as_json()  # which becomes a file
    with tempfile.TemporaryDirectory(prefix="whet-") as directory:
        outcome = run_isolated(needs_in_child, told, Path(directory), time_limit_s=_TIME_LIMIT_S)
    if outcome.failure is not None:
        raise outcome.failure.as_error()
    if outcome.value is None:
        raise WhetError("the process that computes the memory of the replicas ended without a result")
    return Needs(**outcome.value)


def needs_in_child(**asked: Any) -> dict[str, Any]:
    """Return the fields of Needs for what `Asked.as_json` returned."""
    from whet.measure.machine.cache import cache_dir
    from whet.server.artefacts.directories import EngineSource
    from whet.server.footprint import PROGRAM_BYTES, footprint
    from whet.server.opening import checked_sources, given_of, options_of

    read = Asked.from_json(asked)
    given = given_of(read, read.settings)
    ranks = read.options.tensor_parallel_size
    weights, private, num_engines = 0, ranks * PROGRAM_BYTES, 0
    for source in checked_sources(read.model, read.models, read.names).values():
        if isinstance(source, EngineSource):
            # One byte of state, which is counted elsewhere, and the weights apart from the rest.
            one = replace(read.options, memory=1, shared_weights=".", tensor_parallel_size=1)
            options = options_of(source, replace(given, options=one), lambda line: None)
            found = footprint(source.directory, options, draft=given.draft)
            weights += found.shared_bytes
            private += found.private_bytes - PROGRAM_BYTES - 1
            num_engines += 1
        else:
            private += sum(path.stat().st_size for path in source.directory.rglob("*.pt2"))
    return asdict(Needs(weights, private, num_engines, str(cache_dir() / "weights")))
