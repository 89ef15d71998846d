"""Describe the answers about states of long-term memory for /openapi.json. See whet.server.http.documented."""

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MemoryUse(_Answer):
    """Say how the banks of a state are used. The figures are means over the layers; `bytes` are those of all banks."""

    slots: float
    written: float
    utilization: float
    mean_age: float
    bytes: int


class State(_Answer):
    """Describe what a model remembers of a text. `model` is null where no served model made it, or nobody noted it."""

    id: str
    object: str
    model: str | None
    num_tokens: int
    bytes: int
    memory: MemoryUse


class StateFile(_Answer):
    """Name a state that is kept."""

    id: str
    object: str
    created: int
    file_bytes: int


class States(_Answer):
    """List the states that are kept."""

    object: str
    data: list[StateFile]


class Deleted(_Answer):
    """Confirm that a state is gone."""

    id: str
    object: str
    deleted: bool
