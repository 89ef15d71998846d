"""Hold what a server is asked to serve, also as JSON for a process that does it."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from whet.core.recipe import Recipe
from whet.models.options import Dtype, WeightBits
from whet.server.http.settings import Settings
from whet.server.options import EngineOptions


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Hold what is to be served, as the arguments of `whet.serve` explain it.

    Attributes:
        names: What requests may call `model`; empty for its directory's name.
        settings: The settings of the server. `served_names` are replaced by what is found.
    """

    model: str | None = None
    models: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    names: tuple[str, ...] = ()
    options: EngineOptions = field(default_factory=EngineOptions)
    settings: Settings = field(default_factory=lambda: Settings(served_names=("model",)))
    recipe: str | Recipe | None = None
    dtype: Dtype | None = None
    weights: WeightBits | None = None
    draft: str | None = None
    libraries: tuple[str, ...] = ()
    max_waiting: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON. It holds the API keys: show it to nobody."""
        settings = {one.name: getattr(self.settings, one.name) for one in fields(Settings) if one.init}
        settings.pop("_secret")  # each process makes its own
        recipe = self.recipe.model_dump(mode="json") if isinstance(self.recipe, Recipe) else self.recipe
        rest = {one.name: getattr(self, one.name) for one in fields(self)}
        shared = self.options.shared_weights
        return {
            **rest,
            "models": dict(self.models),
            "options": {**asdict(self.options), "shared_weights": None if shared is None else os.fspath(shared)},
            "settings": settings,
            "recipe": recipe,
        }

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> "Asked":
        """Return what `as_json` made JSON of."""
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in read["settings"].items()
        }
        recipe = read["recipe"]
        return cls(
            **{
                **read,
                "names": tuple(read["names"]),
                "libraries": tuple(read["libraries"]),
                "options": EngineOptions(**read["options"]),
                "settings": Settings(**settings),
                "recipe": Recipe.model_validate(recipe) if isinstance(recipe, dict) else recipe,
            }
        )

    def inner(self, *, shutdown_timeout_s: float, write_timeout_s: float) -> "Asked":
        """Return the same for a process behind a proxy, which speaks HTTPS and answers other origins itself."""
        times = {"shutdown_timeout_s": shutdown_timeout_s, "write_timeout_s": write_timeout_s}
        return replace(self, settings=self.settings.behind_proxy(**times))
