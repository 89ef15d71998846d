"""Find the parameters that no product multiplies, such as the rates of a scan.

A recurrent layer decides by them how long it remembers. They must not decay towards zero, be rounded to bfloat16, or be
pruned, even where they have the two dimensions of a matrix. A module names them in `no_products`.
"""

from torch import nn


def plain_parameters(model: nn.Module) -> frozenset[int]:
    """Return the identities of the parameters that no product multiplies."""
    return frozenset(
        id(getattr(module, name))
        for module in model.modules()
        for name in getattr(module, "no_products", ())
        if getattr(module, name, None) is not None
    )
