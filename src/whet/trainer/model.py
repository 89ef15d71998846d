"""Make or open the model that is trained, compute its loss, and write it as a Hugging Face directory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from whet.errors import OptionError, TargetError
from whet.measure.memory import free_bytes
from whet.models.config_file import read_json
from whet.models.decoder.reference import Decoder
from whet.models.families import FAMILIES, model_type_of
from whet.models.trainable import Trainable
from whet.parallel.dropout import dropped
from whet.techniques.mechanisms.packing.packed_attention import Documents
from whet.techniques.mechanisms.packing.packed_models import arguments_of, why_not
from whet.techniques.mechanisms.packing.packing import IGNORED
from whet.techniques.mechanisms.pruning.decoders import Kept, changed_config, cut_decoder
from whet.ui.figures import num_bytes

_CARRIES = "this model carries what it has read from one document into the next"
Batch = dict[str, Tensor]
"""Hold "ids" and "targets", int64 [B, T]; where documents share rows, "positions" and "documents" [B, T] too."""


@dataclass(frozen=True)
class TrainedModel:
    """Hold a model that is trained, and what its kind needs to be called and written.

    Attributes:
        name: What is said of it, as "llama, 10.7 million parameters".
        max_tokens: The most tokens of a row; None for any.
        logits: Maps the model, ids [B, T], positions [B, T] or None, and the documents that share rows, or None, to
            logits [B, T, V].
        write: Writes the model into an empty directory, given weights by name and the ids of special tokens.
        given: The keys of the config.json of a model of models/; None where transformers runs the model.
        why_unpacked: Returns why documents must not share a row; "" where they may.
        file_name: Returns the name of a weight in files, given its name in the module.
        not_adapted: The linear layers that LoRA cannot take, by the end of their names, each with the reason.
        dropped: The types of the parts of blocks that dropout applies to, by name.
        fill: Gives a unit of the module its weights, which are on the meta device; None where they are there.
    """

    module: nn.Module
    name: str
    vocab_size: int
    max_tokens: int | None
    logits: Callable[[nn.Module, Tensor, Tensor | None, Any], Tensor]
    write: Callable[[Path, Mapping[str, Tensor], Mapping[str, int]], None]
    given: Mapping[str, Any] | None = None
    why_unpacked: Callable[[nn.Module], str] = lambda module: ""
    file_name: Callable[[str], str] = str
    not_adapted: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    fill: Callable[[nn.Module], None] | None = None

    @property
    def num_outcomes(self) -> int:
        """Return among how many tokens it chooses: a guess has the loss of their logarithm."""
        return self.vocab_size

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy over the targets of a batch, in nats a token."""
        documents = Documents(batch["documents"]) if "documents" in batch else None
        logits_BTV = self.logits(module, batch["ids"], batch.get("positions"), documents)
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), batch["targets"].flatten(), ignore_index=IGNORED)

    def summed_loss(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the sum of the cross-entropy over the targets of a batch, in nats."""
        flat = logits_BTV.float().flatten(0, 1)
        return F.cross_entropy(flat, targets_BT.flatten(), ignore_index=IGNORED, reduction="sum")

    def num_targets(self, batch: Batch) -> int:
        """Return how many targets a batch has: what its loss is the mean of."""
        return int((batch["targets"] != IGNORED).sum())

    def scores(self, module: nn.Module, batches: Sequence[Batch]) -> dict[str, float]:
        """Return the scores of held-out batches; `module` may stand for the model."""
        return self.scored([sum(sums) for sums in zip(*(self.tally(module, one) for one in batches), strict=True)])

    def tally(self, module: nn.Module, batch: Batch) -> list[float]:
        """Return what is summed over held-out batches: the cross-entropy in nats, and the targets."""
        num = self.num_targets(batch)
        return [num * float(self.loss(module, batch)) if num else 0.0, float(num)]

    def scored(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the scores of sums of tallies: the mean cross-entropy, in nats a token."""
        total, count = sums
        return {"held_out_loss": total / max(1.0, count)}

    @torch.no_grad()
    def go_on(self, module: nn.Module, ids: list[int], *, num_tokens: int, temperature: float, seed: int) -> list[int]:
        """Return the tokens with which a model goes on.

        Every token computes the whole text again, or as much of its end as the model takes. A server does better; this
        is for a look at a model that trains.

        Args:
            ids: The text's tokens, at least one.
            temperature: What logits are divided by; 0 takes the likeliest token.
            seed: Decides what is drawn. The generators of the training go on where they were.
        """
        generator = torch.Generator().manual_seed(seed)
        device = next(module.parameters()).device
        found = list(ids)
        for _ in range(num_tokens):
            seen = found if self.max_tokens is None else found[-self.max_tokens :]
            logits_V: Tensor = self.logits(module, torch.tensor([seen], device=device), None, None)[0, -1].float().cpu()
            if temperature == 0:
                found.append(int(logits_V.argmax()))
            else:
                chances_V = torch.softmax(logits_V / temperature, -1)
                found.append(int(torch.multinomial(chances_V, 1, generator=generator)))
        return found[len(ids) :]


def open_model(directory: Path, seed: int, *, in_parts: bool = False) -> TrainedModel:
    """Open the model of a Hugging Face directory, to be trained further.

    Args:
        in_parts: Leave weights where they are until `fill` is called, if the family can.

    Raises:
        TargetError: There is none, or it is no causal language model.
        MissingExtra: It is of a family that transformers runs, which is not installed.
    """
    raw = read_json(directory)
    family = FAMILIES.get(model_type_of(raw))
    if family is None or family.trains is None:
        return _of_transformers(directory, seed)
    # The keys of a foreign layout say nothing to those who read what is written.
    given = raw if "model_type" in raw else {}
    if in_parts:
        return _of_family(family.trains, *family.files.load_in_parts(directory), given=given)
    return _of_family(family.trains, family.files.load(directory), given=given)


def new_model(given: Mapping[str, Any], vocab_size: int, seed: int, *, in_parts: bool = False) -> TrainedModel:
    """Return a new model with drawn weights.

    Args:
        given: The keys of its config.json. Without vocab_size it has the tokenizer's.
        in_parts: Draw no weights until `fill` is called, if the family can.

    Raises:
        OptionError: The keys make no model that whet trains from nothing.
    """
    given = {"model_type": "llama", **given}
    given.setdefault("vocab_size", vocab_size)
    trainable = {name: one.trains for name, one in FAMILIES.items() if one.trains is not None}
    family = trainable.get(str(given["model_type"]))
    if family is None:
        raise OptionError(
            f"model.model_type is {given['model_type']!r}; whet makes new models of {', '.join(trainable)}. For "
            "others, save a model with transformers and name its directory as model.directory"
        )
    if unknown := sorted(set(given) - set(family.config.model_fields) - family.also_known):
        raise OptionError(f"there is no key model.{unknown[0]} in the config.json of {given['model_type']}")
    try:
        config = family.config.model_validate(given)
    except ValidationError as error:
        first: Any = error.errors()[0]
        key = ".".join(["model", *map(str, first["loc"])])
        raise OptionError(f"{key}: {first['msg'].removeprefix('Value error, ')}") from error
    if why := family.refusal(config):
        raise OptionError(f"model.{why}")
    generator = torch.Generator().manual_seed(seed)
    if in_parts and (found := family.fresh_in_parts(config, generator)) is not None:
        return _of_family(family, *found, given=given)
    _check_room(family, config)
    return _of_family(family, family.fresh(config, generator), given=given)


def _check_room(family: Trainable, config: Any) -> None:
    """Raise TargetError where the weights of a new model do not fit into the free memory."""
    with torch.device("meta"):
        weights = sum(p.nbytes for p in family.build(config).parameters())
    free = free_bytes(with_swap=True)
    if weights > free:
        *others, last = (f"model.{key}" for key in family.size_keys)
        raise TargetError(
            f"the weights of this model take {num_bytes(weights)}, and {num_bytes(free)} of memory are free; make "
            f"{', '.join(others)} or {last} smaller"
        )


def _of_family(
    family: Trainable, module: Any, fill: Callable[[nn.Module], None] | None = None, *, given: Mapping[str, Any]
) -> TrainedModel:
    config = module.config

    def logits(module: nn.Module, ids: Tensor, positions: Tensor | None, documents: Documents | None) -> Tensor:
        found: Tensor
        if documents is None:
            found = module(ids)
        elif family.packing == "mask":
            found = module(ids, positions, documents.mask)
        else:
            found = module(ids, documents_BT=documents.numbers)
        return found

    def write(directory: Path, weights: Mapping[str, Tensor], tokens: Mapping[str, int]) -> None:
        family.write(config, directory, given, weights, tokens)

    return TrainedModel(
        module=module,
        name=_named(config.model_type, module),
        vocab_size=config.vocab_size,
        max_tokens=family.max_tokens(config),
        logits=logits,
        write=write,
        given=given,
        why_unpacked=lambda _: "" if family.packing != "none" else _CARRIES,
        file_name=family.file_name,
        not_adapted=family.not_adapted,
        dropped=family.dropped,
        fill=fill,
    )


def cut_model(model: TrainedModel, kept: Kept) -> TrainedModel:
    """Return a decoder of models/ without the parts that are not kept; the one given stays as it is."""
    assert model.given is not None
    assert isinstance(model.module, Decoder)
    family = FAMILIES[model.module.config.model_type].trains
    assert family is not None
    given = {**model.given, **changed_config(model.module, kept)}
    return _of_family(family, cut_decoder(model.module, kept), given=given)


def _of_transformers(directory: Path, seed: int) -> TrainedModel:
    from whet.workloads.huggingface import load_model
    from whet.workloads.huggingface_training import check_causal

    torch.manual_seed(seed)
    model: Any = load_model(directory)
    check_causal(model)
    text = model.config.get_text_config()

    def logits(module: nn.Module, ids: Tensor, positions: Tensor | None, documents: Documents | None) -> Tensor:
        given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
        if positions is not None and documents is not None:
            given = arguments_of(model, ids, positions, documents.numbers)
        found: Tensor = module(**given).logits
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
        why_unpacked=why_not,
    )


def _named(family: str, module: nn.Module) -> str:
    count = sum(p.numel() for p in module.parameters())
    return f"{family}, {count / 1e6:.3g} million parameters"


def add_dropout(model: TrainedModel, share: float) -> None:
    """Add dropout behind the embedding and the parts of the blocks of a model of models/, in place.

    It sets a share of the numbers that these add to the model's stream to zero while it trains (Srivastava et al.,
    2014). Evaluation and the model that is written have none.

    Raises:
        OptionError: The model is one of transformers, or of a family whose parts are not named.
    """
    if not share:
        return
    if not model.dropped:
        raise OptionError(
            "whet adds no dropout to models of this family; leave optimizer.dropout out (models of transformers have a "
            "dropout of their own in config.json)"
        )
    for module in model.module.modules():
        if isinstance(module, nn.Embedding) or type(module).__name__ in model.dropped:
            module.register_forward_hook(partial(_drop, share))


def _drop(share: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return dropped(output, share, is_training=module.training)
