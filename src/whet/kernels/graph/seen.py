"""Name the rows of a batch of sequences that a call of a plan works on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.kernels.graph.structs import SeenStruct


class SeenRows:
    """Hold which rows of a batch count. The others are padding, and are not computed.

    Attributes:
        is_seen: [B, L].
        num_seen: How many count.
    """

    def __init__(self, is_seen: NDArray[np.bool_]) -> None:
        self.is_seen = np.ascontiguousarray(is_seen)
        flat = self.is_seen.reshape(-1)
        seen = np.flatnonzero(flat)
        self.num_seen = len(seen)
        self._rows: NDArray[Any] = np.concatenate([seen, np.flatnonzero(~flat)]).astype(np.int32)
        addresses = self._rows.ctypes.data, flat.ctypes.data
        self.struct = SeenStruct(*addresses, self.num_seen, len(flat), self.is_seen.shape[1])
