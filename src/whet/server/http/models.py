"""What one server serves: engines and artefacts, each by its names."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.engine import Engine
from whet.server.http.reading import unknown_model


@dataclass(frozen=True)
class Models:
    """The models of a server.

    Attributes:
        engines: By the names that requests may call each by; the first is what answers call it.
        artefacts: By name.
    """

    engines: Mapping[tuple[str, ...], Engine] = field(default_factory=dict)
    artefacts: Mapping[str, ServedArtefact] = field(default_factory=dict)

    def artefact(self, name: str) -> ServedArtefact:
        """Return the artefact of a name. Raises ApiError (404) where there is none."""
        if name not in self.artefacts:
            raise unknown_model(name, list(self.artefacts))
        return self.artefacts[name]
