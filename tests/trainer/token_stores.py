"""Look into stores of tokens."""

from itertools import pairwise
from typing import Any

import numpy as np

from whet.trainer.tokens.store import TokenStore
from whet.trainer.tokens.store_format import ContentDigest


def documents_in(store: TokenStore) -> list[list[Any]]:
    """Return the tokens of each document."""
    return [store.tokens[begin:end].tolist() for begin, end in pairwise(store.starts)]


def digest_of(store: TokenStore) -> str:
    """Return the digest of a store's content, as a writer of it would write."""
    digest = ContentDigest(store.dtype)
    digest.has_trained = store.trained is not None
    digest.tokens.update(np.ascontiguousarray(store.tokens).data)
    digest.starts.update(np.ascontiguousarray(store.starts).data)
    digest.trained.update(b"" if store.trained is None else np.ascontiguousarray(store.trained).data)
    return digest.hexdigest()
