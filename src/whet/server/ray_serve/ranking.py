"""Order replicas for a request by its key and by what they have to do.

Source: consistent hashing with bounded loads, arXiv:1608.01350; rendezvous hashing, Thaler and Ravishankar 1998.
"""

import hashlib
from collections.abc import Callable, Sequence

from whet.server.replicas.ring import most_load


def ranked(key: str, names: Sequence[str], load: Callable[[str], int]) -> list[str]:
    """Return the replicas' names in the order in which they are to be asked.

    Each key has an order of its own (rendezvous hashing), so a replica that comes or goes moves only the keys for which
    it is the first. Replicas with too much to do are moved to the end, the idlest of them first.

    Args:
        key: The request's key; "" for none, whose order goes by load alone.
        load: Returns the number of requests that a replica has now.
    """
    loads = {name: load(name) for name in names}
    if not key:
        return sorted(names, key=lambda name: loads[name])
    most = most_load(loads.values()) if loads else 0
    order = sorted(names, key=lambda name: hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest())
    free = [name for name in order if loads[name] < most]
    return free + sorted((name for name in order if loads[name] >= most), key=lambda name: loads[name])
