"""Keep what was measured of a machine in whet's cache, one file for each kind of measurement."""

import logging
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from whet.errors import OutputError
from whet.files import write_whole

_LOG = logging.getLogger("whet")


class Record(BaseModel):
    """Define what every cached file holds: the fingerprint of the machine that was measured."""

    model_config = ConfigDict(extra="forbid")

    fingerprint: str


Kept = TypeVar("Kept", bound=Record)


def read_record(path: Path, kind: type[Kept], fingerprint: str, what: str) -> Kept | None:
    """Return a cached file's content; None where there is none, it is damaged, or it is of another machine or whet.

    Args:
        what: What is measured again, for the log, such as "the machine's limits".
    """
    try:
        record = kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        _LOG.warning("%s is damaged or of another whet; %s are measured again", path, what)
        return None
    return record if record.fingerprint == fingerprint else None


def keep_record(path: Path, record: Record, what: str) -> None:
    """Write a file into the cache. Where that fails, the log says so: what was measured can be used all the same."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, record.model_dump_json(indent=2) + "\n")
    except (OSError, OutputError) as error:
        _LOG.warning("%s were measured but cannot be kept: %s", what, error)
