"""Open a selective state-space model for an engine: with whet's kernels, or in PyTorch if there are none."""

import logging
from pathlib import Path

import torch

from whet.errors import KernelsError, OptionError
from whet.kernels.build import library
from whet.kernels.linear.packed import Kind
from whet.models.options import ServingOptions
from whet.models.selective.config import read_config
from whet.models.selective.files import read_weights
from whet.models.selective.native import NativeSelective
from whet.models.selective.reference import load_selective
from whet.models.selective.rows import RowsOfStates
from whet.models.step import ServedModel

_log = logging.getLogger("whet.models")

_AS_IS = {"bf16": (Kind.BF16, torch.bfloat16), "fp32": (Kind.F32, torch.float32)}
_QUANTISED = {"int8": Kind.S8, "int4": Kind.S4}


def open_selective(directory: Path | str, options: ServingOptions) -> ServedModel:
    """Load a model of the Mamba family from a directory.

    Raises:
        TargetError: The directory holds no such model that can be run.
        OptionError: An option does not fit: there are no keys and values to round, or quantised weights are asked for
            but whet has no kernels here.
    """
    if options.kv != "as-is":
        raise OptionError(f"kv={options.kv}: a state-space model has no keys and values; leave kv out")
    config = read_config(directory)
    kind, dtype = _AS_IS[options.dtype]
    try:
        kernels = library()
    except KernelsError as error:
        if options.weights != "as-is":
            raise OptionError(f"weights={options.weights} needs whet's own kernels: {error}") from error
        _log.warning("running in torch, several times slower than whet's own kernels: %s", error)
        return RowsOfStates(load_selective(directory, dtype), max_model_len=options.max_model_len)
    return NativeSelective(
        config,
        read_weights(directory, config),
        kernels,
        kind=_QUANTISED.get(options.weights, kind),
        max_model_len=options.max_model_len,
    )
