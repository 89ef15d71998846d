"""Keep what models with long-term memory remember of texts, as files by name (--state-dir)."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fastapi import Request

from whet.errors import TargetError
from whet.server.http.errors import ApiError, as_api_errors, invalid
from whet.server.http.request_checks import KEY

T = TypeVar("T")

MOST_STATES = 1000  # of one key
_MOST_BYTES = 64 * 2**30  # of one key
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")  # so no path, and no hidden file
_ENDING = ".safetensors"
_MOST_AT_ONCE = 2  # files that are read at the same time


class StateFiles:
    """Keep the states of each API key in a directory of its own. Use it on the event loop only.

    `directory` is where the files are; empty to keep none.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory) if directory else None
        self._being_made: set[Path] = set()
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    def path(self, request: Request, name: str) -> Path:
        """Return the file of a state.

        Raises:
            ApiError: 400 where it is no name or no states are kept, 404 where there is no such state.
        """
        path = self._named(request, name)
        if not path.is_file():
            raise ApiError(404, f"there is no state {name}; GET /v1/states lists all", param="state", code="no_state")
        return path

    @contextmanager
    def new(self, request: Request, name: str) -> Iterator[Path]:
        """Hold the name of a state while it is made, and return its file, whose directory is there.

        Raises:
            ApiError: 400 where it is no name, 409 where the name is taken, 413 where there are too many states.
        """
        path = self._named(request, name)
        if path.exists() or path in self._being_made:
            raise ApiError(
                409, f"there is a state {name} already: delete it, or take another name", code="state_exists"
            )
        sizes = [size for _, size, _ in self.listed(request)]
        if len(sizes) + len(self._being_made) >= MOST_STATES or sum(sizes) > _MOST_BYTES:
            said = f"{len(sizes)} states of {sum(sizes) / 2**20:.0f} MiB are kept, and no more are: delete some"
            raise ApiError(413, said, code="too_many_states")
        self._being_made.add(path)
        try:
            path.parent.mkdir(exist_ok=True)
            yield path
        finally:
            self._being_made.discard(path)

    def listed(self, request: Request) -> list[tuple[str, int, int]]:
        """Return name, bytes and time of each state of the caller's."""
        found = []
        for path in sorted(self._of(request).glob(f"[!.]*{_ENDING}")):
            try:
                status = path.stat()
            except FileNotFoundError:  # it was deleted meanwhile
                continue
            found.append((path.name.removesuffix(_ENDING), status.st_size, int(status.st_mtime)))
        return found

    async def read(self, path: Path, load: Callable[[Path], T]) -> T:
        """Return what `load` makes of a state's file, once it is its turn.

        Raises:
            ApiError: 400 where it is damaged, or what `load` refuses: a state of another model, for example.
        """
        try:
            async with self._turns:
                with as_api_errors():
                    return await asyncio.to_thread(load, path)
        except TargetError as error:  # say it without the place of the file
            said = str(error).replace(str(path), f"the state {path.name.removesuffix(_ENDING)}")
            raise invalid(said, "state", "unusable_state") from error

    def _of(self, request: Request) -> Path:
        if self._directory is None:
            raise invalid("this server keeps no states: start it with --state-dir DIR", "state")
        key = request.scope.get(KEY, "")
        return self._directory / f"key-{hashlib.sha256(key.encode()).hexdigest()[:32]}" if key else self._directory

    def _named(self, request: Request, name: str) -> Path:
        directory = self._of(request)
        if not _NAME.fullmatch(name):
            said = "the name of a state has 1 to 128 letters, digits, '.', '_' and '-', and does not begin with '.'"
            raise invalid(said, "state")
        return directory / f"{name}{_ENDING}"
