"""Open a decoder with long-term memory for an engine: with whet's kernels, or in PyTorch if they cannot run it."""

from pathlib import Path

from whet.models.decoder.native import refusal
from whet.models.memory_bank.config import read_config
from whet.models.memory_bank.files import read_weights
from whet.models.memory_bank.native import NativeLtm
from whet.models.memory_bank.reference import load_ltm
from whet.models.memory_bank.rows import RowsOfLtmStates
from whet.models.native_opening import TORCH_DTYPES, formats, serving_kernels
from whet.models.options import ServingOptions
from whet.models.step import ServedModel


def open_ltm(directory: Path | str, options: ServingOptions) -> ServedModel:
    """Load a decoder with long-term memory from a directory.

    Raises:
        TargetError: The directory holds no such model that can be run.
        OptionError: Quantised weights, keys or values are asked for, but whet's kernels cannot run the model.
    """
    config = read_config(directory)
    kernels = serving_kernels(options, refusal(config.decoder))
    if kernels is None:
        return RowsOfLtmStates(load_ltm(directory, TORCH_DTYPES[options.dtype]), options.max_model_len)
    kind, kv = formats(options)
    return NativeLtm(
        config,
        read_weights(directory, config),
        kernels,
        kind=kind,
        kv=kv,
        max_model_len=options.max_model_len,
    )
