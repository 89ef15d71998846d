"""Prompts as token ids: random, so that none is in a server's cache by chance, and the same for the same seed."""

import numpy as np


class Prompts:
    """Random prompts. stream: prompts of another stream are other ones, as for a calibration before the replay.

    shared_prefix: so many first tokens are the same in every prompt, of every stream; a shorter prompt is all of them
    but its last.
    """

    def __init__(self, vocab_size: int, *, shared_prefix: int = 0, seed: int = 0, stream: int = 0) -> None:
        self._vocab_size = vocab_size
        self._seed, self._stream = seed, stream
        self._prefix = self._random(0, 0, shared_prefix)

    def token_ids(self, index: int, num_tokens: int) -> list[int]:
        """Prompt number `index`, of num_tokens (1 or more) ids from 0 up to the vocabulary's size."""
        prefix = self._prefix[: num_tokens - 1]
        return prefix + self._random(1 + self._stream, index, num_tokens - len(prefix))

    def _random(self, stream: int, index: int, num_tokens: int) -> list[int]:
        random = np.random.default_rng((self._seed, stream, index))
        ids: list[int] = random.integers(0, self._vocab_size, num_tokens).tolist()
        return ids
