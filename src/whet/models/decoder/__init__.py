"""Decoders of the Llama family: their config and files, a reference in PyTorch, and the same by whet's kernels."""

from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.reference import Decoder, load_decoder

__all__ = ["Decoder", "DecoderConfig", "load_decoder"]
