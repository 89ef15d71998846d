"""Make or open the model that is trained, compute its loss, and write it as a Hugging Face directory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from whet.errors import OptionError
from whet.models.config_file import read_json
from whet.models.decoder.config import MODEL_TYPES, DecoderConfig
from whet.models.decoder.fresh import fresh_decoder, write_decoder
from whet.models.decoder.reference import Decoder, load_decoder
from whet.trainer.free_memory import check_room
from whet.training.packed_attention import Documents
from whet.training.packing import IGNORED
from whet.training.pruning.decoders import Kept, changed_config, cut_decoder

Batch = dict[str, Tensor]
"""Hold "ids" and "targets", int64 [B, T]; where documents share rows, "positions" and "documents" [B, T] too."""


@dataclass(frozen=True)
class TrainedModel:
    """Hold a model that is trained, and what its kind needs to be called and written.

    Attributes:
        module: The model.
        name: What is said of it, as "llama, 10.7 million parameters".
        vocab_size: The number of tokens that it knows.
        max_tokens: The most tokens of a row; None for any.
        logits: Maps the model, ids [B, T], positions [B, T] and a mask [B, 1, T, T], or None, to logits [B, T, V].
        write: Writes the model into an empty directory, given weights by name and the ids of special tokens.
        given: The keys of the config.json of a model of models/; None where transformers runs the model.
    """

    module: nn.Module
    name: str
    vocab_size: int
    max_tokens: int | None
    logits: Callable[[nn.Module, Tensor, Tensor | None, Tensor | None], Tensor]
    write: Callable[[Path, Mapping[str, Tensor], Mapping[str, int]], None]
    given: Mapping[str, Any] | None = None

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy over the targets of a batch, in nats a token."""
        positions, mask = batch.get("positions"), None
        if "documents" in batch:
            mask = Documents(batch["documents"]).mask
        logits_BTV = self.logits(module, batch["ids"], positions, mask)
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), batch["targets"].flatten(), ignore_index=IGNORED)

    def scores(self, module: nn.Module, batches: Sequence[Batch]) -> dict[str, float]:
        """Return the mean cross-entropy of held-out batches, in nats a token.

        Args:
            module: The model, or what computes in its place.
            batches: The held-out batches.
        """
        total, count = 0.0, 0
        for batch in batches:
            num = int((batch["targets"] >= 0).sum())
            total += num * float(self.loss(module, batch))
            count += num
        return {"held_out_loss": total / max(1, count)}


def open_model(directory: Path, seed: int) -> TrainedModel:
    """Open the model of a Hugging Face directory, to be trained further.

    Raises:
        TargetError: There is none, or it is no causal language model.
        MissingExtra: It is of a family that transformers runs, which is not installed.
    """
    raw = read_json(directory)
    if raw.get("model_type") in MODEL_TYPES:
        return _of_decoder(load_decoder(directory), raw)
    return _of_transformers(directory, seed)


def new_model(given: Mapping[str, Any], vocab_size: int, seed: int) -> TrainedModel:
    """Return a new model with drawn weights.

    Args:
        given: The keys of its config.json. Without vocab_size it has the tokenizer's.
        vocab_size: The tokens of the tokenizer.
        seed: Decides the weights.

    Raises:
        OptionError: The keys make no model that whet trains from nothing.
    """
    given = {"model_type": "llama", **given}
    given.setdefault("vocab_size", vocab_size)
    if given["model_type"] not in MODEL_TYPES:
        raise OptionError(
            f"model.model_type is {given['model_type']!r}; whet makes new models of {', '.join(MODEL_TYPES)}. For "
            "others, save a model with transformers and name its directory as model.directory"
        )
    if unknown := sorted(set(given) - set(DecoderConfig.model_fields) - _ALSO_KNOWN):
        raise OptionError(f"there is no key model.{unknown[0]} in the config.json of {given['model_type']}")
    try:
        config = DecoderConfig.model_validate(given)
    except ValidationError as error:
        first: Any = error.errors()[0]
        key = ".".join(["model", *map(str, first["loc"])])
        raise OptionError(f"{key}: {first['msg'].removeprefix('Value error, ')}") from error
    check_room(config)
    return _of_decoder(fresh_decoder(config, torch.Generator().manual_seed(seed)), given)


_ALSO_KNOWN = frozenset({"rope_theta", "rope_scaling", "use_sliding_window", "max_window_layers"})


def _of_decoder(decoder: Decoder, given: Mapping[str, Any]) -> TrainedModel:
    """Return a decoder of models/ as a model to train."""

    def logits(module: nn.Module, ids: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        found: Tensor = module(ids, positions, mask)
        return found

    def write(directory: Path, weights: Mapping[str, Tensor], tokens: Mapping[str, int]) -> None:
        write_decoder(decoder, directory, given, weights, tokens)

    config = decoder.config
    return TrainedModel(
        module=decoder,
        name=_named(config.model_type, decoder),
        vocab_size=config.vocab_size,
        max_tokens=config.max_position_embeddings,
        logits=logits,
        write=write,
        given=given,
    )


def cut_model(model: TrainedModel, kept: Kept) -> TrainedModel:
    """Return a model without the parts that are not kept; the one given stays as it is.

    Args:
        model: A model of models/.
        kept: What stays of it.
    """
    assert model.given is not None
    assert isinstance(model.module, Decoder)
    small = cut_decoder(model.module, kept)
    assert isinstance(small, Decoder)
    return _of_decoder(small, {**model.given, **changed_config(model.module, kept)})


def _of_transformers(directory: Path, seed: int) -> TrainedModel:
    """Return a causal language model of transformers."""
    from whet.workloads.huggingface import load_model
    from whet.workloads.huggingface_training import check_causal

    torch.manual_seed(seed)
    model: Any = load_model(directory)
    check_causal(model)
    text = model.config.get_text_config()

    def logits(module: nn.Module, ids: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        # transformers finds documents by their positions; with a cache, which is its default, it would not look.
        given = {} if positions is None else {"position_ids": positions}
        found: Tensor = module(input_ids=ids, use_cache=False, **given).logits
        return found

    def write(out: Path, weights: Mapping[str, Tensor], tokens: Mapping[str, int]) -> None:
        model.save_pretrained(out, state_dict=dict(weights))

    limit = getattr(text, "max_position_embeddings", None)
    return TrainedModel(
        module=model,
        name=_named(text.model_type, model),
        vocab_size=text.vocab_size,
        max_tokens=limit if isinstance(limit, int) else None,
        logits=logits,
        write=write,
    )


def _named(family: str, module: nn.Module) -> str:
    count = sum(p.numel() for p in module.parameters())
    return f"{family}, {count / 1e6:.3g} million parameters"
