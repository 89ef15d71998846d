"""Read a decoder's weights from a Hugging Face directory."""

from pathlib import Path

import torch
from torch import Tensor

from whet.models import tensor_files
from whet.models.decoder.config import DecoderConfig, read_config
from whet.models.decoder.reference import Decoder
from whet.models.tensor_files import Shape


def weight_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Return the shape of each tensor of a decoder, by name.

    With tied embeddings there is no lm_head.weight: embed_tokens.weight is used for both.
    """
    return tensor_files.shapes_of(lambda: Decoder(config), tied=config.tie_word_embeddings)


def read_weights(directory: Path | str, config: DecoderConfig) -> dict[str, Tensor]:
    """Return the tensors that `weight_shapes` names, in their stored dtype. Names lack transformers' prefix `model.`.

    They are views of memory-mapped files. A tensor is read from the disk when it is used, and the files must not change
    while the tensors exist.

    Raises:
        TargetError: A file is missing or damaged, or a tensor is missing, unexpected, quantised, or of another shape.
    """

    def name_of(stored: str) -> str | None:
        # Old files hold the rotary angles, which are computed.
        return None if stored.endswith(".rotary_emb.inv_freq") else stored.removeprefix("model.")

    return tensor_files.read_weights(directory, weight_shapes(config), name_of, tied=config.tie_word_embeddings)


def load_decoder(directory: Path | str, dtype: torch.dtype = torch.float32) -> Decoder:
    """Load the decoder in a Hugging Face directory (config.json and safetensors), in eval mode.

    Its weights are copies: they do not depend on the files.

    Raises:
        TargetError: A file is missing or damaged, the weights do not fit, or the model is of another family.
    """
    config = read_config(directory)
    weights = read_weights(directory, config)
    return tensor_files.filled(lambda: Decoder(config), weights, dtype, tied=config.tie_word_embeddings)
