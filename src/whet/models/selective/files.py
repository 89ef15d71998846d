"""Read a selective state-space model from a directory of transformers, or of the original code.

The original code's weights have other names, and come as pickles, which have to be saved as safetensors first.
"""

from whet.models.selective.config import read_config
from whet.models.selective.reference import Selective, is_kept_wide
from whet.models.tensor_files import ModelFiles

_EMBEDDING = "embeddings.weight"
_PICKLES = (
    "save its tensors as safetensors, safetensors.torch.save_file(torch.load(FILE, weights_only=True), "
    "'model.safetensors'), after making copies of tensors that share memory"
)


def _name_of(stored: str) -> str:
    """Return a tensor's name without transformers' prefix; the original code calls the embedding otherwise."""
    name = stored.removeprefix("backbone.")
    return _EMBEDDING if name == "embedding.weight" else name


FILES = ModelFiles(
    read_config=read_config,
    build=Selective,
    name_of=_name_of,
    is_wide=is_kept_wide,
    embedding=_EMBEDDING,
    says="tie_word_embeddings (tie_embeddings)",
    pickles=_PICKLES,
)
"""Read models of the Mamba family. Rates, step biases, convolutions and norms stay in float32."""

weight_shapes, read_weights, load_selective = FILES.shapes, FILES.read, FILES.load
