"""Decide whether a model runs in whet's kernels, and in which number formats."""

import logging

import torch

from whet.errors import KernelsError, OptionError
from whet.kernels.build import Library, library
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind
from whet.models.options import ServingOptions

_log = logging.getLogger("whet.models")

_AS_IS = {"bf16": (Kind.BF16, Kv.BF16), "fp32": (Kind.F32, Kv.F32)}
_QUANTISED = {"int8": Kind.S8, "int4": Kind.S4}
TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""The type of the weights where a model runs in PyTorch, by the option dtype."""


def serving_kernels(
    options: ServingOptions, refusal: str | None = None, *, torch_rounds_kv: bool = False
) -> Library | None:
    """Return whet's kernels; None, with a warning, if the model runs in PyTorch.

    Args:
        refusal: Why the kernels cannot run the model, if so.
        torch_rounds_kv: Whether keys and values can be rounded in PyTorch too.

    Raises:
        OptionError: Quantised weights, keys or values are asked for, which need the kernels.
    """
    try:
        if refusal is not None:
            raise KernelsError(refusal)
        return library()
    except KernelsError as error:
        for name, value in (("weights", options.weights), ("kv", "as-is" if torch_rounds_kv else options.kv)):
            if value != "as-is":
                raise OptionError(f"{name}={value} needs whet's own kernels: {error}") from error
        _log.warning("running in torch, several times slower than whet's own kernels: %s", error)
        return None


def formats(options: ServingOptions) -> tuple[Kind, Kv]:
    """Return the kernels' number formats of weights, and of keys and values."""
    kind, kv = _AS_IS[options.dtype]
    return _QUANTISED.get(options.weights, kind), Kv.S8 if options.kv == "int8" else kv
