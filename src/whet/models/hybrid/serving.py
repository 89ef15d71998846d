"""Open a hybrid model for an engine: with whet's kernels, or in PyTorch if they cannot run it."""

from pathlib import Path

from whet.models.decoder.native import refusal
from whet.models.hybrid.config_files import read_config
from whet.models.hybrid.files import load_hybrid, read_weights
from whet.models.hybrid.native import NativeHybrid
from whet.models.hybrid.rows import RowsOfHybridStates
from whet.models.native_opening import TORCH_DTYPES, formats, serving_kernels
from whet.models.options import ServingOptions
from whet.models.step import ServedModel


def open_hybrid(directory: Path | str, options: ServingOptions) -> ServedModel:
    """Load a hybrid model from a Hugging Face directory.

    Raises:
        TargetError: The directory holds no such model that can be run.
        OptionError: Quantised weights, keys or values are asked for, but whet's kernels cannot run the model.
    """
    config = read_config(directory)
    reason = refusal(config.decoder) if config.layers_with("attention") else None
    kernels = serving_kernels(options, reason)
    if kernels is None:
        return RowsOfHybridStates(load_hybrid(directory, TORCH_DTYPES[options.dtype]), options.max_model_len)
    kind, kv = formats(options)
    return NativeHybrid(
        config,
        read_weights(directory, config),
        kernels,
        kind=kind,
        kv=kv,
        max_model_len=options.max_model_len,
    )
