"""Look at the masks of attention in a script's first step: would it be less, document by document?"""

from typing import Any

import torch.nn.functional as F
from torch.compiler import is_dynamo_compiling as is_compiling

from whet.profiling.step.patching import Patches
from whet.techniques.costs.compile_time import compile_s
from whet.techniques.mechanisms.packing.packed_masks import AttentionCounter


class FirstAttention:
    """Count the products of attention until `end`. Compiled code is not seen."""

    def __init__(self) -> None:
        self._counter = AttentionCounter()
        self._has_ended = False

    def listen(self, patches: Patches) -> None:
        """Count the calls of scaled_dot_product_attention from now on."""
        fused = F.scaled_dot_product_attention

        def counted(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and not self._has_ended:
                self._counter.count(*args, **kwargs)
            return fused(*args, **kwargs)

        patches.set(F, "scaled_dot_product_attention", counted)

    def end(self) -> float | None:
        """Return the share of the products that is left within documents; None where some may not have been seen."""
        self._has_ended = True
        return self._counter.share if compile_s() == 0 else None
