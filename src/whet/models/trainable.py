"""Define what a family of models must say so that its models can be trained: made anew, called and written."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel
from safetensors.torch import save_file
from torch import Generator, Tensor, nn

from whet.models.config_file import FILE
from whet.models.filling import Drawing, Filling
from whet.models.tensor_files import WEIGHTS

Packing = Literal["mask", "documents", "none"]


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """Say how models of a family are made, called and written.

    Attributes:
        config: The type of its config.json. Its field `model_type` holds the family's name.
        also_known: Keys of a config.json that are no field of it, and that it understands or may ignore.
        build: Makes a model of a config, on the meta device too.
        initialise: Draws a model's weights anew from a generator.
        draw: Draws one weight, whole, given the config, its name and the generator, where `initialise` draws all in
            the order of the model's parameters, and each depends on nothing else; None where it does not.
        file_name: Returns the name of a weight in files, given its name in the module.
        config_json: Returns the keys of the config.json of a config, as transformers writes them.
        architectures: The class of transformers by model_type.
        packing: How documents that share a row are kept apart. "mask": the forward takes positions and an attention
            mask after the tokens. "documents": it takes the number of each token's document by the name documents_BT.
            "none": they cannot be kept apart.
        max_tokens: Returns the most tokens of a row; None for any number.
        not_adapted: The linear layers that LoRA cannot take, by the end of their names, each with the reason.
        dropped: The types of a block's parts whose output is added to the stream, by name: what dropout applies to.
            Empty where it does not apply.
        size_keys: The keys that make a model smaller, for messages.
        refusal: Returns why no new model of a config is made, beginning with the key; "" where one is.
    """

    config: type[BaseModel]
    also_known: frozenset[str] = frozenset()
    build: Callable[[Any], nn.Module]
    initialise: Callable[[Any, Generator], None]
    draw: Callable[[Any, str, Tensor, Generator], None] | None = None
    file_name: Callable[[str], str]
    config_json: Callable[[Any], dict[str, Any]] = lambda config: config.model_dump(mode="json", exclude_none=True)
    architectures: Mapping[str, str]
    packing: Packing = "none"
    max_tokens: Callable[[Any], int | None] = lambda config: None
    not_adapted: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    size_keys: tuple[str, ...] = ("hidden_size", "num_hidden_layers")
    refusal: Callable[[Any], str] = lambda config: ""

    def fresh(self, config: Any, generator: Generator) -> Any:
        model = self.build(config)
        self.initialise(model, generator)
        return model

    def fresh_in_parts(self, config: Any, generator: Generator) -> tuple[Any, Filling] | None:
        """Return a model on the meta device, and what gives it the weights of `fresh`; None where only that can."""
        if self.draw is None:
            return None
        with torch.device("meta"):
            model = self.build(config)
        return model, Filling(model, Drawing(model, self.draw, config, generator))

    def in_files(self, config: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a model's weights by their names in files, without the second copy of a tied head."""
        return {
            self.file_name(name): value
            for name, value in weights.items()
            if name != "lm_head.weight" or not config.tie_word_embeddings
        }

    def write(
        self,
        config: Any,
        directory: Path,
        given: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        tokens: Mapping[str, int],
    ) -> None:
        """Write a model as transformers does: config.json, generation_config.json, model.safetensors.

        Args:
            directory: An empty directory.
            given: The keys of the config.json that the model was made from; they are kept.
            weights: The model's weights, by the names of its state_dict.
            tokens: The ids of special tokens, as {"eos_token_id": 0}.
        """
        keys = {**self.config_json(config), **given, **tokens}
        keys["architectures"] = [self.architectures[config.model_type]]
        keys["dtype"] = "float32"
        stored = self.in_files(config, weights)
        kept = {name: value.detach().float().contiguous() for name, value in stored.items()}
        save_file(kept, directory / WEIGHTS, metadata={"format": "pt"})
        for file, content in ((FILE, keys), ("generation_config.json", {"do_sample": False, **tokens})):
            (directory / file).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
