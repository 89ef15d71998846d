"""Read a decoder from a Hugging Face directory."""

from whet.models.decoder.config import read_config
from whet.models.decoder.reference import Decoder
from whet.models.tensor_files import ModelFiles


def _name_of(stored: str) -> str | None:
    """Return a tensor's name without transformers' prefix. Old files hold the rotary angles, which are computed."""
    return None if stored.endswith(".rotary_emb.inv_freq") else stored.removeprefix("model.")


FILES = ModelFiles(read_config=read_config, build=Decoder, name_of=_name_of)
"""Read decoders of the Llama family."""

weight_shapes, read_weights, load_decoder = FILES.shapes, FILES.read, FILES.load
