"""Open a decoder for an engine: with whet's kernels, or in PyTorch if they cannot run it."""

from pathlib import Path

import torch

from whet.models.decoder.config import read_config
from whet.models.decoder.files import read_weights
from whet.models.decoder.native import NativeDecoder, refusal
from whet.models.decoder.paged import PagedDecoder
from whet.models.decoder.reference import load_decoder
from whet.models.native_opening import TORCH_DTYPES, formats, serving_kernels
from whet.models.options import ServingOptions
from whet.models.step import ServedModel


def open_decoder(directory: Path | str, options: ServingOptions) -> ServedModel:
    """Load a decoder of the Llama family from a Hugging Face directory.

    Raises:
        TargetError: The directory holds no decoder that can be run.
        OptionError: Quantised weights are asked for, but whet's kernels cannot run the decoder.
    """
    config = read_config(directory)
    kernels = serving_kernels(options, refusal(config), torch_rounds_kv=True)
    if kernels is None:
        decoder = load_decoder(directory, dtype=TORCH_DTYPES[options.dtype])
        kv_dtype = torch.int8 if options.kv == "int8" else None
        return PagedDecoder(decoder, kv_dtype=kv_dtype, max_model_len=options.max_model_len)
    kind, kv = formats(options)
    return NativeDecoder(
        config,
        read_weights(directory, config),
        kernels,
        kind=kind,
        kv=kv,
        max_model_len=options.max_model_len,
    )
