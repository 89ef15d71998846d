"""Make random prompts as token ids, so that none is in a server's cache by chance. A seed reproduces them."""

import numpy as np


class Prompts:
    """Make random prompts.

    Args:
        vocab_size: Token ids are below this number.
        shared_prefix: How many first tokens all prompts of all streams share. The last token of a prompt is always its
            own.
        stream: Another stream has other prompts, such as for the calibration before a replay.
    """

    def __init__(self, vocab_size: int, *, shared_prefix: int = 0, seed: int = 0, stream: int = 0) -> None:
        self._vocab_size = vocab_size
        self._seed, self._stream = seed, stream
        self._prefix = self._random(0, 0, shared_prefix)

    def token_ids(self, index: int, num_tokens: int) -> list[int]:
        """Return prompt number `index`, with num_tokens (1 or more) token ids."""
        prefix = self._prefix[: num_tokens - 1]
        return prefix + self._random(1 + self._stream, index, num_tokens - len(prefix))

    def _random(self, stream: int, index: int, num_tokens: int) -> list[int]:
        random = np.random.default_rng((self._seed, stream, index))
        ids: list[int] = random.integers(0, self._vocab_size, num_tokens).tolist()
        return ids
