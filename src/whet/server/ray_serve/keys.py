"""Find which earlier requests a request continues, so that it can go to the replica that has computed their prompt.

Ray's router sees neither the body nor tokens. So a request gets a key from the bytes of its prompt, and the router
sends equal keys to the same replica as long as that is not overloaded.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator

_BLOCK = 64  # bytes; about a sentence
_LEAST_BLOCKS = 3  # what begins alike for less is no common beginning: "messages", a role, "What is"
_MOST_BLOCKS = 128  # what comes later in a prompt does not decide
_FIELDS = (b'"messages"', b'"prompt"', b'"input"', b'"text"', b'"inputs"')


class Keys:
    """Remember the blocks of prompts by the key of the request that began with them, the last `most` blocks of all.

    A request has the key of the one with which it shares most blocks from the beginning on, or a new key. A
    conversation so keeps its key while it grows, and requests with a common system prompt share one.
    """

    def __init__(self, most: int = 65_536) -> None:
        self._most = most
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def key(self, body: bytes, salt: str = "") -> str:
        """Return the key of a request, "" if there is no prompt in its body.

        Args:
            body: The body as JSON. Only the bytes of the prompt matter, and they are not parsed.
            salt: Requests with other salts share no key.
        """
        blocks = list(_blocks(body, salt))
        if not blocks:
            return ""
        known = [key for block in blocks if (key := self._known.get(block)) is not None]
        key = known[-1] if known else blocks[0].hex()
        for block in blocks:
            self._known.setdefault(block, key)
            self._known.move_to_end(block)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return key


def _blocks(body: bytes, salt: str) -> Iterator[bytes]:
    """Yield a digest for each whole block and all before it, from the third one on; one for a shorter prompt."""
    starts = [at for field in _FIELDS if (at := body.find(field)) >= 0]
    if not starts:
        return
    prompt = body[min(starts) :][: _BLOCK * _MOST_BLOCKS]
    first = min(_BLOCK * _LEAST_BLOCKS, len(prompt))
    digest = hashlib.blake2b(salt.encode() + b"\0" + prompt[:first], digest_size=16)
    yield digest.digest()
    for at in range(first, len(prompt) - _BLOCK + 1, _BLOCK):
        digest.update(prompt[at : at + _BLOCK])
        yield digest.digest()
