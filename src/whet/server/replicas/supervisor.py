"""Keep the replicas running: start them, start those that die again, and replace them one after the other."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from whet.errors import WhetError
from whet.measure.cgroup import free_memory
from whet.server.replicas.fleet import Fleet
from whet.server.replicas.replica import Replica

_FIRST_S, _LONGEST_S = 0.5, 30.0  # from a death to the next start; doubled each time
_CALM_S = 60.0  # a replica that ran for so long is started again at once
_END_S = 4.0  # how long a replica without requests may take to end


class Supervisor:
    """Run as many replicas as a fleet has places. Use it on the event loop only, in the main thread.

    Args:
        fleet: Where replicas are put once they take requests.
        make: Makes the replica of a number, which has not started.
        say: Called with a sentence for each death, start and replacement.
        drain_s: How long a replica that is replaced may take to answer what it has.
    """

    def __init__(
        self, fleet: Fleet, make: Callable[[int], Replica], say: Callable[[str], None], *, drain_s: float
    ) -> None:
        self._fleet, self._make, self._say, self._drain_s = fleet, make, say, drain_s
        self._replicas: dict[int, Replica] = {}
        self._locks = [asyncio.Lock() for _ in range(fleet.num_replicas)]
        self._keeping: list[asyncio.Task[None]] = []
        self._starting: set[Replica] = set()
        self._updating: asyncio.Task[None] | None = None

    @property
    def replicas(self) -> Sequence[Replica]:
        return [self._replicas[number] for number in sorted(self._replicas)]

    async def start(self) -> None:
        """Start all replicas, and return once all take requests.

        The first one starts alone: what is wrong is so said once, and what it compiles is there for the others.

        Raises:
            WhetError: One does not start. None is left running.
        """
        first, *others = range(self._fleet.num_replicas)
        try:
            await self._start(first)
            ends = await asyncio.gather(*map(self._start, others), return_exceptions=True)
            for error in ends:
                if error is not None:
                    raise error
        except BaseException:
            await self.stop()
            raise
        self._keeping = [asyncio.ensure_future(self._keep(number)) for number in range(self._fleet.num_replicas)]

    def begin_update(self) -> None:
        """Replace all replicas, one after the other, in the background."""
        if self._updating is not None and not self._updating.done():
            self._say("the replicas are being replaced already")
            return
        self._updating = asyncio.ensure_future(self.update())

    async def update(self) -> None:
        """Replace all replicas, one after the other, by new processes of the same options.

        Each one goes on until the new one takes requests, and then answers what it has. If memory does not hold both,
        it answers what it has first. If a new one does not start, the old ones that are left stay.
        """
        for number in range(self._fleet.num_replicas):
            async with self._locks[number]:
                old = self._replicas[number]
                has_room = free_memory() > old.memory
                try:
                    if not has_room:
                        self._say(f"memory does not hold one more replica: replica {number} ends first")
                        await self._retire(old)
                    await self._start(number)
                except WhetError as error:
                    stays = "the old one goes on" if has_room else "it is tried again"
                    self._say(f"replica {number} is not replaced, since the new one did not start ({error}): {stays}")
                    return
                if has_room:
                    await self._retire(old)
                self._fleet.counts.updates += 1
                self._say(f"replica {number} is replaced")

    async def stop(self) -> None:
        """End all replicas."""
        tasks = [*self._keeping, *([self._updating] if self._updating is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.gather(
            *(one.end(_END_S) for one in self._replicas.values()), *(one.end(0) for one in list(self._starting))
        )

    async def _start(self, number: int) -> None:
        """Start a replica, and let it take requests."""
        replica = self._make(number)
        self._starting.add(replica)
        try:
            await replica.start()
        finally:
            self._starting.discard(replica)
        self._replicas[number] = replica
        await self._fleet.put(replica.upstream)

    async def _retire(self, old: Replica) -> None:
        """Send a replica no more requests, let it answer those that it has, and end it."""
        self._fleet.remove(old.upstream)
        await old.upstream.idle(self._drain_s)
        await old.end(_END_S)

    async def _keep(self, number: int) -> None:
        """Start the replica of a number again whenever it dies."""
        wait_s = _FIRST_S
        while True:
            replica = self._replicas[number]
            began_s = time.monotonic()
            how = await replica.ended()
            async with self._locks[number]:
                if self._replicas[number] is not replica:  # an update has replaced it
                    continue
                self._fleet.remove(replica.upstream)
            self._fleet.counts.deaths[number] += 1
            await replica.close()
            if time.monotonic() - began_s > _CALM_S:
                wait_s = _FIRST_S
            self._say(f"replica {number} (process {replica.pid}) ended {how}; it is started again in {wait_s:g} s")
            wait_s = await self._restart(number, replica, wait_s)

    async def _restart(self, number: int, dead: Replica, wait_s: float) -> float:
        """Start a replica until it runs, and return how long to wait after its next death."""
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_S)
            async with self._locks[number]:
                if self._replicas[number] is not dead:
                    return wait_s
                try:
                    await self._start(number)
                except WhetError as error:
                    self._say(f"replica {number} did not start: {error}; it is tried again in {wait_s:g} s")
                    continue
            self._say(f"replica {number} takes requests again")
            return wait_s
