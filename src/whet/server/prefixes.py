"""Name the beginnings of sequences by hashes, so that what was computed of one is found for another.

A hash covers everything that the state after its tokens depends on: the model and its number format, the salt, the
state at which the sequence begins, and all tokens, in blocks of a fixed size. Each hashed field is preceded by its name
and its length, so that different fields never give the same bytes. The hash is SHA-256: a collision would show one user
the text of another.
"""

import hashlib
from array import array
from dataclasses import dataclass

from whet.server.request import Request


@dataclass(frozen=True)
class PrefixHashes:
    """Hash the tokens of requests, block by block. `identity`: the model and the format of its state."""

    identity: str
    block_size: int

    def of(self, request: Request, index: int) -> bytes:
        """Return the hash of the request's full block `index`, which covers all blocks before it."""
        hashes = request.block_hashes
        if not hashes and request.beginning is not None:
            hashes += [self._root(request)] * (request.num_before // self.block_size)  # nothing is kept of these alone
        while len(hashes) <= index:
            first = len(hashes) * self.block_size
            parent = hashes[-1] if hashes else self._root(request)
            hashes.append(block_hash(parent, request.token_ids[first : first + self.block_size]))
        return hashes[index]

    def _root(self, request: Request) -> bytes:
        root = root_hash(self.identity, request.cache_salt)
        return _sha256((b"root", root), (b"state", request.beginning.key)) if request.beginning is not None else root


def root_hash(identity: str, salt: str) -> bytes:
    """Return the parent hash of a sequence's first block."""
    return _sha256((b"identity", _text(identity)), (b"salt", _text(salt)))


def block_hash(parent: bytes, token_ids: list[int]) -> bytes:
    """Return the hash of a full block, given the hash of the block before it."""
    return _sha256((b"parent", parent), (b"tokens", array("q", token_ids).tobytes()))


def _sha256(*fields: tuple[bytes, bytes]) -> bytes:
    return hashlib.sha256(b"".join(b"%s:%d:%s" % (name, len(value), value) for name, value in fields)).digest()


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a client's salt may contain lone surrogates
