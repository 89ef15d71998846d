"""Find what one server serves, engines and artefacts, by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.artefacts.text_encoder import TextEncoder
from whet.server.engine import Engine
from whet.server.http.errors import ApiError, invalid
from whet.server.http.request_parsing import unknown_model


@dataclass(frozen=True)
class Models:
    """Hold the models of a server.

    Attributes:
        engines: By the names that requests may call each by; the first is what answers call it.
        encoders: The text encoders among the artefacts, by name; for others, why they are none.
    """

    engines: Mapping[tuple[str, ...], Engine] = field(default_factory=dict)
    artefacts: Mapping[str, ServedArtefact] = field(default_factory=dict)
    encoders: Mapping[str, TextEncoder | str] = field(default_factory=dict)

    @property
    def names_of_engines(self) -> list[str]:
        return [name for names in self.engines for name in names]

    @property
    def names(self) -> list[str]:
        return [*self.names_of_engines, *self.artefacts]

    def artefact(self, name: str) -> ServedArtefact:
        """Return the artefact of a name, or raise ApiError (404) if there is none."""
        if not self.artefacts:
            names = ", ".join(self.names_of_engines)
            said = (
                f"no model of this server speaks the Open Inference Protocol; its language models are at /v1: {names}"
            )
            raise ApiError(404, said, param="model", code="model_not_found")
        if name not in self.artefacts:
            raise unknown_model(name, list(self.artefacts))
        return self.artefacts[name]

    def encoder(self, name: str | None, task: str | None) -> TextEncoder:
        """Return the text encoder of a name that does a task; the first such one where no name is given.

        Raises:
            ApiError: 404 where no model has that name, 400 where it does not do the task.
        """
        if name is not None and name not in self.encoders:
            if name not in self.names:
                raise unknown_model(name, self.names)
            raise invalid(f"{name} is a language model: it gives neither embeddings nor scores", "model")
        asked = self.encoders.items() if name is None else [(name, self.encoders[name])]
        whys = []
        for one, encoder in asked:
            if isinstance(encoder, str):
                whys.append(f"{one} takes no texts: {encoder}")
            elif task in (None, encoder.use.task):
                return encoder
            else:
                whys.append(f"{one} scores pairs of texts, and gives no embeddings: ask it by POST /v1/rerank")
        raise invalid("; ".join(whys) or "no text encoder is served here: tune one's directory, as hf:DIR", "model")
