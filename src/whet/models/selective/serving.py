"""Open a selective state-space model for an engine: with whet's kernels, or in PyTorch if there are none."""

from pathlib import Path

from whet.errors import OptionError
from whet.models.native_opening import TORCH_DTYPES, formats, serving_kernels
from whet.models.options import ServingOptions
from whet.models.selective.config import read_config
from whet.models.selective.files import read_weights
from whet.models.selective.native import NativeSelective
from whet.models.selective.reference import load_selective
from whet.models.selective.rows import RowsOfStates
from whet.models.step import ServedModel


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
    kernels = serving_kernels(options)
    if kernels is None:
        model = load_selective(directory, TORCH_DTYPES[options.dtype])
        return RowsOfStates(model, max_model_len=options.max_model_len)
    return NativeSelective(
        config,
        read_weights(directory, config),
        kernels,
        kind=formats(options)[0],
        max_model_len=options.max_model_len,
    )
