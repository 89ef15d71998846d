"""Choose a request's replica: the one that has computed the longest part of its prompt, unless it is overloaded."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from whet.server.replicas.ring import Ring, digest, most_load

_BLOCK_BYTES = 256  # of the body's text: about four of the engine's blocks of 16 tokens
_MOST_BLOCKS = 256  # of one prompt; what follows has little influence on where it is cached
_MOST_BYTES = _BLOCK_BYTES * _MOST_BLOCKS
_MOST_REMEMBERED = 2**16  # blocks
_MOST_HOLDERS = 4  # replicas that are remembered for a block
_FIELDS = {
    "/v1/completions": re.compile(rb'"prompt"\s*:\s*'),
    "/v1/chat/completions": re.compile(rb'"messages"\s*:\s*'),
}
_STATES = "/v1/states/"
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_PART = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[][{}]', re.DOTALL)
_BLANKS = b" \t\r\n"

Reason = Literal["prefix", "ring", "load"]


class Candidate(Protocol):
    """Describe a replica that takes requests.

    Attributes:
        number: Its place on the ring, from 0. One that is started in its place has the same.
        id: Its own number: one that is started in its place has another, since its cache is empty.
        num_open: How many requests it works on.
    """

    @property
    def number(self) -> int: ...

    @property
    def id(self) -> int: ...

    @property
    def num_open(self) -> int: ...


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True)
class Spot:
    """Say which requests belong together. `blocks` are chained hashes of a prompt's beginnings, from short to long."""

    blocks: tuple[int, ...] = ()
    is_remembered: bool = True


def spot_of(path: str, key: str, body: bytes) -> Spot:
    """Return where a request belongs.

    Prompts are found in the body's bytes and not parsed, so a large body costs no more than a small one. If a text
    looks like a field, the request may be sent to another replica, where it is answered as well.

    Args:
        key: The client's API key. Prompts of different keys share no cache, so they need not meet.
    """
    if path.startswith(_STATES):  # so that one replica alone makes a state, and refuses a second one of its name
        return Spot((digest(f"{key} {path}".encode()),), is_remembered=False)
    field = _FIELDS.get(path)
    found = field.search(body) if field is not None else None
    if found is None:
        return Spot()
    content = _prompt(body[found.end() : found.end() + _MOST_BYTES])
    blocks = []
    before = digest(key.encode())
    for start in range(0, len(content), _BLOCK_BYTES):
        before = digest(content[start : start + _BLOCK_BYTES], before)
        blocks.append(before)
    return Spot(tuple(blocks))


def _prompt(value: bytes) -> bytes:
    """Return the bytes of a prompt without those that follow it: text, token ids, messages, or the first of several."""
    if value[:1] == b'"':
        text = _TEXT.match(value)
        return text.group()[1:] if text else b""
    inner = value[1:].lstrip(_BLANKS)
    if value[:1] != b"[" or not inner:
        return b""
    if inner[:1] == b'"':
        return _prompt(inner)
    if inner[:1] == b"{":
        return _messages(inner)
    ids = inner.removeprefix(b"[").partition(b"]")[0]
    return ids.translate(None, _BLANKS)


def _messages(value: bytes) -> bytes:
    """Return the bytes of messages up to the bracket that closes their list."""
    depth = 0
    for part in _PART.finditer(value):
        first = part.group()[:1]
        depth += (first in b"[{") - (first in b"]}")
        if depth < 0:
            return value[: part.start()]
    return value


class Router:
    """Remember which replica has computed which beginnings of prompts, and choose among those that take requests."""

    def __init__(self, num_replicas: int) -> None:
        self._ring = Ring(num_replicas)
        self._holders: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    def choose(self, spot: Spot, candidates: Sequence[C]) -> tuple[C, Reason]:
        """Return a replica and why it was chosen. None gets more than 1.25 times the mean load, rounded up.

        The one that has the longest known part of the prompt comes first. Where nothing is known, its place on the ring
        decides. Requests without a prompt go where the fewest are.
        """
        if not spot.blocks:
            return min(candidates, key=lambda one: (one.num_open, one.number)), "load"
        most = most_load([one.num_open for one in candidates])
        free = {one.number: one for one in candidates if one.num_open < most}
        known = {one.id: one for one in free.values()}
        for block in reversed(spot.blocks):
            having = [known[id] for id in self._holders.get(block, ()) if id in known]
            if having:
                return min(having, key=lambda one: one.num_open), "prefix"
        own = next(self._ring.order(spot.blocks[0]))
        nearest = next(number for number in self._ring.order(spot.blocks[0]) if number in free)
        return free[nearest], "ring" if nearest == own else "load"

    def sent(self, spot: Spot, to: Candidate) -> None:
        """Remember that a replica computes a prompt."""
        if not spot.is_remembered:
            return
        for block in spot.blocks:
            others = [id for id in self._holders.pop(block, ()) if id != to.id]
            self._holders[block] = (to.id, *others[: _MOST_HOLDERS - 1])
        while len(self._holders) > _MOST_REMEMBERED:
            self._holders.popitem(last=False)
