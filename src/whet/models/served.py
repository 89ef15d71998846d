"""A model for an engine, from a Hugging Face directory: by whet's kernels, or in torch where they cannot run it."""

import logging
from pathlib import Path
from typing import Literal

import torch

from whet.errors import KernelsError, OptionError
from whet.kernels.build import library
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind
from whet.models.decoder import load_decoder
from whet.models.decoder_config import read_config
from whet.models.decoder_files import read_weights
from whet.models.native_decoder import NativeDecoder, refusal
from whet.models.paged_decoder import PagedDecoder
from whet.models.step import ServedModel

_log = logging.getLogger("whet.models")

Dtype = Literal["bf16", "fp32"]
WeightBits = Literal["as-is", "int8", "int4"]
KvBits = Literal["as-is", "int8"]

_TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32}
_AS_IS = {"bf16": (Kind.BF16, Kv.BF16), "fp32": (Kind.F32, Kv.F32)}


def open_model(
    directory: Path | str,
    *,
    dtype: Dtype = "bf16",
    weights: WeightBits = "as-is",
    kv: KvBits = "as-is",
    max_model_len: int | None = None,
) -> ServedModel:
    """dtype: of keys and values, and of the weights where they stay as they are; int8 and int4: of the weights.

    Raises TargetError where the directory holds no model that can be run, OptionError where an option is none.
    """
    for name, value, known in (
        ("dtype", dtype, ("bf16", "fp32")),
        ("weights", weights, ("as-is", "int8", "int4")),
        ("kv", kv, ("as-is", "int8")),
    ):
        if value not in known:
            raise OptionError(f"{name}={value}: write {', '.join(known)}")
    config = read_config(directory)
    try:
        reason = refusal(config)
        if reason is not None:
            raise KernelsError(reason)
        kernels = library()
    except KernelsError as error:
        if weights != "as-is":
            raise OptionError(f"weights={weights} needs whet's own kernels: {error}") from error
        _log.warning("running in torch, several times slower than whet's own kernels: %s", error)
        decoder = load_decoder(directory, dtype=_TORCH[dtype])
        return PagedDecoder(decoder, kv_dtype=torch.int8 if kv == "int8" else None, max_model_len=max_model_len)
    kind, kv_kind = _AS_IS[dtype]
    return NativeDecoder(
        config,
        read_weights(directory, config),
        kernels,
        kind={"int8": Kind.S8, "int4": Kind.S4}.get(weights, kind),
        kv=Kv.S8 if kv == "int8" else kv_kind,
        max_model_len=max_model_len,
    )
