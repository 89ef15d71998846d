"""Cut heads, MLP channels, width and whole layers out of decoders, so that what is left is a smaller decoder.

It takes whet's own Decoder and models of transformers with the same tensors (Llama, Mistral, Qwen2, Qwen3). All layers
keep equal numbers of heads and channels, so that a config.json can say what they are, and others load the result.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whet.errors import TargetError
from whet.models.decoder.config import MODEL_TYPES
from whet.models.decoder.reference import Decoder

_IN_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Shape:
    """Hold the sizes of a decoder.

    Attributes:
        groups: Key-value heads of a layer. Each goes with its query heads.
        channels: The channels of an MLP.
        width: The numbers of the stream that all layers read and add to.
        queries: Query heads of a key-value head.
    """

    layers: int
    groups: int
    channels: int
    width: int
    queries: int
    head_dim: int


@dataclass(frozen=True)
class Kept:
    """Say which parts of a decoder stay, by their indices in rising order.

    Attributes:
        groups: For each layer that stays, its key-value heads; all of them the same number.
        channels: For each layer that stays, the channels of its MLP; all of them the same number.
        width: The numbers of the stream.
    """

    layers: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    channels: tuple[tuple[int, ...], ...]
    width: tuple[int, ...]

    @classmethod
    def all_of(cls, shape: Shape) -> "Kept":
        """Return everything."""
        every = range(shape.layers)
        return cls(
            layers=tuple(every),
            groups=tuple(tuple(range(shape.groups)) for _ in every),
            channels=tuple(tuple(range(shape.channels)) for _ in every),
            width=tuple(range(shape.width)),
        )


def refusal(model: nn.Module) -> str:
    """Return why a model is no decoder that can be cut, or "" where it is one."""
    if isinstance(model, Decoder):
        return ""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in MODEL_TYPES or not hasattr(getattr(model, "model", None), "layers"):
        return f"{type(model).__name__} is no decoder of the families {', '.join(MODEL_TYPES)}"
    shape = shape_of(model)
    unknown = sorted(name for name, _ in model.named_parameters() if _cuts(name, shape, Kept.all_of(shape)) is None)
    return f"it has a weight {unknown[0]}, which whet does not know how to cut" if unknown else ""


def layers_of(model: nn.Module) -> Any:
    found: Any = model
    return found.layers if isinstance(model, Decoder) else found.model.layers


def shape_of(model: nn.Module) -> Shape:
    config: Any = model.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Shape(
        layers=config.num_hidden_layers,
        groups=groups,
        channels=config.intermediate_size,
        width=config.hidden_size,
        queries=heads // groups,
        head_dim=head_dim,
    )


def changed_config(model: nn.Module, kept: Kept) -> dict[str, Any]:
    """Return the keys of a config.json that say what is left of a decoder."""
    shape, config = shape_of(model), model.config
    groups = len(kept.groups[0])
    found: dict[str, Any] = {
        "num_hidden_layers": len(kept.layers),
        "num_attention_heads": groups * shape.queries,
        "num_key_value_heads": groups,
        "head_dim": shape.head_dim,
        "intermediate_size": len(kept.channels[0]),
        "hidden_size": len(kept.width),
    }
    types = getattr(config, "layer_types", None)
    if types is not None:
        found["layer_types"] = [types[layer] for layer in kept.layers]
    return found


def cut_decoder(model: nn.Module, kept: Kept) -> nn.Module:
    """Return a new, smaller decoder of the same class with copies of the weights that stay. The model stays as it is.

    Args:
        model: A decoder that `refusal` does not refuse.

    Raises:
        TargetError: Nothing would be left of a part, or layers would differ in size.
    """
    _check(kept)
    shape = shape_of(model)
    weights = dict(cut_tensors(model.state_dict(keep_vars=False), shape, kept))
    small = _empty_like(model, changed_config(model, kept))
    example = next(model.parameters())
    small.to(device=example.device, dtype=example.dtype)
    missing, unexpected = small.load_state_dict(weights, strict=False)
    if missing or unexpected:
        raise TargetError(f"the smaller decoder has other tensors than the original: {[*missing, *unexpected][:3]}")
    for new, old in zip(small.parameters(), model.parameters(), strict=False):
        new.requires_grad_(old.requires_grad)
    return small.train(model.training)


def cut_tensors(tensors: Mapping[str, Tensor], shape: Shape, kept: Kept) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and the copies of a decoder's tensors that stay."""
    for name, tensor in tensors.items():
        cuts = _cuts(name, shape, kept)
        if cuts is None:
            raise TargetError(f"whet does not know how to cut {name}")
        new_name, *indices = cuts
        if not new_name:
            continue
        found = tensor.detach()
        for dim, index in enumerate(indices):
            if index is not None:
                found = found.index_select(dim, torch.tensor(index, device=tensor.device))
        yield new_name, found.clone()


def _check(kept: Kept) -> None:
    sizes = [{len(part) for part in parts} for parts in (kept.groups, kept.channels)]
    if not kept.layers or not kept.width or any(size != {max(size, default=0)} or 0 in size for size in sizes):
        raise TargetError("each layer that stays must keep as many heads and channels as the others, and at least one")


def _empty_like(model: nn.Module, changes: Mapping[str, Any]) -> nn.Module:
    """Return a model of the same class with other sizes, whose weights are still to be loaded."""
    if isinstance(model, Decoder):
        known = {**changes}
        if "layer_types" in known:
            known["layer_types"] = tuple(known["layer_types"])
        return Decoder(model.config.model_copy(update=known))
    config = copy.deepcopy(model.config)
    for name, value in changes.items():
        setattr(config, name, value)
    kind: Any = type(model)
    small: nn.Module = kind(config)
    return small


Index = tuple[int, ...] | None


def _cuts(name: str, shape: Shape, kept: Kept) -> tuple[str, Index, Index] | tuple[str, Index] | None:
    """Return the new name of a tensor with the indices that stay along each dimension, None for all.

    The new name is "" where the tensor goes. The answer is None where the tensor is none of a decoder that whet knows.
    """
    prefix, width = ("model." if name.startswith("model.") else ""), kept.width
    found = _IN_LAYER.fullmatch(name.removeprefix("model."))
    if found is None:
        whole: dict[str, tuple[Index, Index] | tuple[Index]] = {
            "embed_tokens.weight": (None, width),
            "norm.weight": (width,),
            "lm_head.weight": (None, width),
        }
        cut = whole.get(name.removeprefix("model."))
        return None if cut is None else (name, *cut)
    layer, rest = int(found[1]), found[2]
    place = kept.layers.index(layer) if layer in kept.layers else None
    known = _in_layer(shape, kept.groups[place or 0], kept.channels[place or 0], width)
    if rest not in known:
        return None
    return ("", None) if place is None else (f"{prefix}layers.{place}.{rest}", *known[rest])  # type: ignore[return-value]


def _in_layer(
    shape: Shape, groups: tuple[int, ...], channels: tuple[int, ...], width: tuple[int, ...]
) -> dict[str, tuple[Index, ...]]:
    """Return which indices of each tensor of a layer stay, by the tensor's name in it."""
    size = shape.queries * shape.head_dim
    queries = tuple(group * size + i for group in groups for i in range(size))
    keys = tuple(group * shape.head_dim + i for group in groups for i in range(shape.head_dim))
    linears = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (channels, width),
        "mlp.up_proj": (channels, width),
        "mlp.down_proj": (width, channels),
    }
    found: dict[str, tuple[Index, ...]] = {f"{name}.weight": cut for name, cut in linears.items()}
    found |= {f"{name}.bias": cut[:1] for name, cut in linears.items()}
    found |= {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,)}
    return {**found, "self_attn.q_norm.weight": (None,), "self_attn.k_norm.weight": (None,)}
