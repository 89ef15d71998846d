"""Open a decoder for an engine: with whet's kernels, or in PyTorch if they cannot run it."""

import logging
from pathlib import Path

import torch

from whet.errors import KernelsError, OptionError
from whet.kernels.build import library
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind
from whet.models.decoder.config import read_config
from whet.models.decoder.files import read_weights
from whet.models.decoder.native import NativeDecoder, refusal
from whet.models.decoder.paged import PagedDecoder
from whet.models.decoder.reference import load_decoder
from whet.models.options import ServingOptions
from whet.models.step import ServedModel

_log = logging.getLogger("whet.models")

_TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32}
_AS_IS = {"bf16": (Kind.BF16, Kv.BF16), "fp32": (Kind.F32, Kv.F32)}
_QUANTISED = {"int8": Kind.S8, "int4": Kind.S4}


def open_decoder(directory: Path | str, options: ServingOptions) -> ServedModel:
    """Load a decoder of the Llama family from a Hugging Face directory.

    Raises:
        TargetError: The directory holds no decoder that can be run.
        OptionError: Quantised weights are asked for, but whet's kernels cannot run the decoder.
    """
    config = read_config(directory)
    try:
        reason = refusal(config)
        if reason is not None:
            raise KernelsError(reason)
        kernels = library()
    except KernelsError as error:
        if options.weights != "as-is":
            raise OptionError(f"weights={options.weights} needs whet's own kernels: {error}") from error
        _log.warning("running in torch, several times slower than whet's own kernels: %s", error)
        decoder = load_decoder(directory, dtype=_TORCH[options.dtype])
        kv_dtype = torch.int8 if options.kv == "int8" else None
        return PagedDecoder(decoder, kv_dtype=kv_dtype, max_model_len=options.max_model_len)
    kind, kv_kind = _AS_IS[options.dtype]
    return NativeDecoder(
        config,
        read_weights(directory, config),
        kernels,
        kind=_QUANTISED.get(options.weights, kind),
        kv=Kv.S8 if options.kv == "int8" else kv_kind,
        max_model_len=options.max_model_len,
    )
