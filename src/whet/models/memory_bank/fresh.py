"""Make a long-term-memory decoder with new weights, and write one as a directory of config.json and safetensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from whet.models.config_file import FILE
from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.reference import Ltm, initialise
from whet.models.tensor_files import WEIGHTS


def fresh_ltm(config: LtmConfig, generator: torch.Generator) -> Ltm:
    """Return a model whose weights are drawn from a generator."""
    model = Ltm(config)
    initialise(model, generator)
    return model


def write_ltm(
    model: Ltm, directory: Path, given: Mapping[str, Any], weights: Mapping[str, Tensor], tokens: Mapping[str, int]
) -> None:
    """Write a model: config.json, generation_config.json, model.safetensors.

    Args:
        model: The model.
        directory: An empty directory.
        given: The keys of the config.json that the model was made from; they are kept.
        weights: The model's weights, by the names of its state_dict.
        tokens: The ids of special tokens, as {"eos_token_id": 0}.
    """
    config = {**json.loads(model.config.model_dump_json(exclude_none=True)), **given, **tokens, "dtype": "float32"}
    kept = {
        name: value.detach().float().contiguous()
        for name, value in weights.items()
        if name != "lm_head.weight" or not model.config.tie_word_embeddings
    }
    save_file(kept, directory / WEIGHTS, metadata={"format": "pt"})
    for file, content in ((FILE, config), ("generation_config.json", {"do_sample": False, **tokens})):
        (directory / file).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
