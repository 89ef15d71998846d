"""Open a hybrid model for an engine: with whet's kernels, or in PyTorch if they cannot run it."""

import logging
from pathlib import Path

import torch

from whet.errors import KernelsError, OptionError
from whet.kernels.build import library
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind
from whet.models.decoder.native import refusal
from whet.models.hybrid.config_files import read_config
from whet.models.hybrid.files import load_hybrid, read_weights
from whet.models.hybrid.native import NativeHybrid
from whet.models.hybrid.rows import RowsOfHybridStates
from whet.models.options import ServingOptions
from whet.models.step import ServedModel

_log = logging.getLogger("whet.models")

_TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32}
_AS_IS = {"bf16": (Kind.BF16, Kv.BF16), "fp32": (Kind.F32, Kv.F32)}
_QUANTISED = {"int8": Kind.S8, "int4": Kind.S4}


def open_hybrid(directory: Path | str, options: ServingOptions) -> ServedModel:
    """Load a hybrid model from a Hugging Face directory.

    Raises:
        TargetError: The directory holds no such model that can be run.
        OptionError: Quantised weights, keys or values are asked for, but whet's kernels cannot run the model.
    """
    config = read_config(directory)
    try:
        reason = refusal(config.decoder) if config.layers_with("attention") else None
        if reason is not None:
            raise KernelsError(reason)
        kernels = library()
    except KernelsError as error:
        for name, value in (("weights", options.weights), ("kv", options.kv)):
            if value != "as-is":
                raise OptionError(f"{name}={value} needs whet's own kernels: {error}") from error
        _log.warning("running in torch, several times slower than whet's own kernels: %s", error)
        return RowsOfHybridStates(load_hybrid(directory, _TORCH[options.dtype]), options.max_model_len)
    kind, kv_kind = _AS_IS[options.dtype]
    return NativeHybrid(
        config,
        read_weights(directory, config),
        kernels,
        kind=_QUANTISED.get(options.weights, kind),
        kv=Kv.S8 if options.kv == "int8" else kv_kind,
        max_model_len=options.max_model_len,
    )
