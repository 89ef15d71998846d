"""Turn prompts into embeddings once: by the text encoder of a diffusers directory, or from a file."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from whet.errors import MissingExtra, TargetError, foreign

_NAMES = ("prompt_embeds", "negative_prompt_embeds")
_KEPT = 64  # embeddings of so many texts are kept


@dataclass(frozen=True)
class Prompt:
    """Hold a prompt's embeddings.

    Attributes:
        embeddings: Those of the prompt, [1, T, D].
        negative: Those of the negative prompt, or of an empty one, of the same shape; None without one.

    Raises:
        TargetError: The shapes don't fit.
    """

    embeddings: Tensor
    negative: Tensor | None = None

    def __post_init__(self) -> None:
        shapes = [tuple(part.shape) for part in (self.embeddings, self.negative) if part is not None]
        if any(len(shape) != 3 or shape[0] != 1 for shape in shapes) or len(set(shapes)) > 1:
            raise TargetError(f"a prompt's embeddings are of one shape [1, T, D]; got {' and '.join(map(str, shapes))}")

    @property
    def width(self) -> int:
        """Return the numbers of a token."""
        return int(self.embeddings.shape[2])

    def to(self, device: torch.device, dtype: torch.dtype) -> "Prompt":
        negative = None if self.negative is None else self.negative.to(device, dtype)
        return Prompt(self.embeddings.to(device, dtype), negative)

    def rows(self, num: int, is_null: Tensor | None) -> Tensor:
        """Return the embeddings for each row of a batch, [num, T, D].

        Args:
            is_null: Which rows have the negative prompt, bool [num]; None where none has.
        """
        if is_null is None or self.negative is None:
            return self.embeddings.expand(num, -1, -1)
        return torch.where(is_null[:, None, None], self.negative, self.embeddings)


def read_prompt(path: Path) -> Prompt:
    """Return the embeddings of a safetensors file that holds prompt_embeds, and maybe negative_prompt_embeds.

    Raises:
        TargetError: The file is missing or damaged, or holds other tensors.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise TargetError(f"{path} is no readable safetensors file of a prompt's embeddings: {error}") from error
    if _NAMES[0] not in tensors or set(tensors) - set(_NAMES):
        raise TargetError(
            f"{path} holds {', '.join(sorted(tensors))}; it must hold {_NAMES[0]}, and may hold {_NAMES[1]}"
        )
    if not all(tensor.is_floating_point() and torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise TargetError(f"{path} holds embeddings that are no finite floating-point numbers")
    return Prompt(tensors[_NAMES[0]].float(), tensors[_NAMES[1]].float() if _NAMES[1] in tensors else None)


def prompt_encoder(folders: tuple[Path, Path]) -> Callable[[str, str], Prompt]:
    """Return a function that turns a prompt and a negative prompt into embeddings. It keeps those of the newest texts.

    Args:
        folders: The folders of the tokenizer and of the text encoder, in the layout of transformers.

    Raises:
        TargetError: One of them cannot be loaded.
        MissingExtra: transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("transformers", "hf", "--prompt") from error
    tokenizer_folder, encoder_folder = folders
    with foreign(TargetError, f"transformers cannot load {tokenizer_folder} and {encoder_folder}"):
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            tokenizer_folder, local_files_only=True, trust_remote_code=False
        )
        encoder, info = transformers.CLIPTextModel.from_pretrained(
            encoder_folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    if info["missing_keys"]:
        raise TargetError(f"{encoder_folder} lacks the weight {min(info['missing_keys'])}; it would be random")
    encoder.eval().requires_grad_(False)

    @lru_cache(maxsize=_KEPT)
    def embeddings(text: str) -> Tensor:
        length = min(tokenizer.model_max_length, encoder.config.max_position_embeddings)
        ids = tokenizer(text, padding="max_length", max_length=length, truncation=True, return_tensors="pt").input_ids
        with torch.inference_mode():
            states: Tensor = encoder(ids)[0]
        return states.clone()

    return lambda prompt, negative: Prompt(embeddings(prompt), embeddings(negative))
