"""Decide what is deployed on a Ray cluster, and check that the cluster can run it."""

import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from whet.core.recipe import Recipe
from whet.errors import WhetError
from whet.server.artefacts.directories import Source
from whet.server.http.settings import Settings
from whet.server.opening import Given, Names
from whet.server.ray_serve import cluster
from whet.server.ray_serve.deployment import Deployed, Scale
from whet.server.ray_serve.nodes import check_room, check_same, cores_each, size_of, survey
from whet.server.ray_serve.options import RayOptions
from whet.server.ray_serve.replica import Asked
from whet.workloads import WEIGHTS

_PROCESS_BYTES = 600 * 2**20  # a process with Ray, PyTorch and whet, before it has loaded anything
_STATE_BYTES = 256 * 2**20  # for keys and values, where --memory does not say


@dataclass(frozen=True)
class Plan:
    """Hold what is to be served, and where.

    Attributes:
        model: The first model, as it was given; None if there are only `models`.
        models: More models, by their names.
        sources: What the models' directories hold.
        settings: The settings of the server before the replicas.
        note: Called with a sentence on what was decided.
    """

    model: str | None
    models: Mapping[str, str]
    sources: Mapping[Names, Source]
    given: Given
    ray: RayOptions
    settings: Settings
    note: Callable[[str], None]

    def deploy(self) -> Deployed:
        """Check the cluster that this process has joined, and start the replicas, or update those that run.

        Raises:
            OptionError: The cluster cannot run them.
            TargetError: They cannot be started.
        """
        from ray import serve

        directories = self._directories()
        nodes = cluster.nodes(directories)
        check_same(nodes, survey(directories))
        replicas = self.ray.replicas
        cpus = self.ray.cpus or cores_each(nodes, replicas.most)
        needed = self._needed_bytes()
        name = "whet-" + re.sub(r"[^A-Za-z0-9._-]", "-", self.settings.served_names[0])
        runs_already = name in serve.status().applications
        check_room(nodes, replicas.least, cpus=cpus, bytes_each=None if runs_already else needed)
        what = "replaces the replicas of" if runs_already else "starts"
        number = (
            f"{replicas} replica{'' if replicas.most == 1 else 's'} with {cpus} core{'' if cpus == 1 else 's'} each"
        )
        self.note(f"Ray Serve {what} {name}: {number}, on {len(nodes)} machine{'' if len(nodes) == 1 else 's'}")
        if len(nodes) > 1 and os.environ.get("RAY_AUTH_MODE") != "token":
            self.note("whoever reaches Ray's ports runs programs on its machines: RAY_AUTH_MODE=token keeps others out")
        options = self.given.options
        scale = Scale(
            replicas=replicas,
            cpus=cpus,
            memory_bytes=needed,
            ongoing=options.max_num_seqs,
            waiting=max(1, options.max_waiting * replicas.most),
            grace_s=self.settings.shutdown_timeout_s,
        )
        return Deployed(name, self._asked(cpus), scale)

    def renew(self, deployed: Deployed) -> None:
        """Replace all replicas while they answer, and note how that ended."""
        try:
            directories = self._directories()
            check_same(cluster.nodes(directories), survey(directories))
            self.note("the replicas are being replaced")
            deployed.renew(secrets.token_hex(8))
            self.note("the replicas have been replaced")
        except WhetError as error:
            self.note(f"the replicas have not been replaced: {error}")

    def _asked(self, threads: int) -> Asked:
        """Return what each replica is told. Paths are whole, and files that the models do not hold are read here.

        Replicas learn neither API keys nor certificates: the server before them checks and encrypts.
        """
        recipe = self.given.recipe
        given = replace(
            self.given,
            recipe=recipe if recipe is None or isinstance(recipe, Recipe) else Recipe.read(Path(recipe)),
            libraries=tuple(_whole(os.fspath(one)) for one in self.given.libraries),
        )
        return Asked(
            model=None if self.model is None else _whole(self.model),
            models={name: _whole(directory) for name, directory in self.models.items()},
            given=given,
            settings=self.settings.behind_proxy(api_keys=(), is_local=False),
            threads=threads,
            generation=secrets.token_hex(8),
        )

    def _directories(self) -> list[str]:
        """Return the models' directories that each machine needs. Built-in models come with whet."""
        found = {source.directory for source in self.sources.values()}
        if self.given.draft is not None:
            found.add(self.given.draft)
        return sorted(str(one.absolute()) for one in found if one.resolve().parent != WEIGHTS.resolve())

    def _needed_bytes(self) -> int:
        """Return about how much memory a replica takes: the weights as they lie on disk, states, and the process."""
        directories = [source.directory for source in self.sources.values()]
        if self.given.draft is not None:
            directories.append(self.given.draft)
        return sum(map(size_of, directories)) + (self.given.options.memory or _STATE_BYTES) + _PROCESS_BYTES


def _whole(named: str) -> str:
    """Return the whole path of what exists here; other names, as those of built-in models, as they are."""
    return str(Path(named).absolute()) if Path(named).exists() else named
