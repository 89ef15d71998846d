"""Load and run decoders of the Llama family, with a reference in PyTorch and with whet's own kernels."""

from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.files import load_decoder
from whet.models.decoder.reference import Decoder

__all__ = ["Decoder", "DecoderConfig", "load_decoder"]
