"""The model that the engines are compared on: Llama's shape, 246 million weights at random, as Hugging Face has it."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from serving_peers.shape import CONFIG, shapes

_SEED = 0
_SPECIAL = ["<unk>", "<s>", "</s>"]


def make_model(directory: Path) -> Path:
    """Write the model unless it is there; its config.json, written last, says that it is whole."""
    if (directory / "config.json").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    save_file(_weights(), directory / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(directory)
    generation = {"bos_token_id": 1, "eos_token_id": 2}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    return directory


def _weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    std = CONFIG["initializer_range"]
    return {
        name: (
            torch.ones(shape, dtype=torch.bfloat16)
            if len(shape) == 1
            else torch.empty(shape).normal_(std=std, generator=generator).bfloat16()
        )
        for name, shape in shapes().items()
    }


def _write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer without merges, filled up to the model's vocabulary with tokens no text becomes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = _SPECIAL + alphabet
    words += [f"<filler_{i}>" for i in range(CONFIG["vocab_size"] - len(words))]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
