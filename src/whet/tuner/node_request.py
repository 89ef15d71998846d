"""Tell a worker on another node what is searched for."""

from pydantic import BaseModel

from whet.tuner.asked import Asked
from whet.tuner.facts import KnownFacts
from whet.tuner.kind_options import KindWord


class NodeRequest(BaseModel, frozen=True):
    """Hold what a worker needs to try recipes as the search itself would.

    Attributes:
        asked: Without where its results and its study lie, which may have a password.
        directory: Where the search was started: names of files are read from there.
        sys_path: Where the search finds modules.
        facts: What the search has found out about the target.
    """

    target: str
    kind: KindWord
    nproc: int | None
    asked: Asked
    on_busy: str
    busy_wait_s: float
    directory: str
    sys_path: tuple[str, ...]
    facts: KnownFacts
