"""Ask a model of transformers how documents that share a row are kept apart, and give it what it needs for that.

Many models find documents where positions begin again. Others take a mask. Some do neither, and let one document see
the one before it without a word. So each model is asked once: another document in the row must not move the outputs of
this one, and these must be the outputs of the document alone.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from whet.errors import OptionError
from whet.techniques.mechanisms.evaluating import evaluating
from whet.techniques.mechanisms.packing.packed_attention import PADDING, Documents
from whet.techniques.mechanisms.packing.packed_masks import SEEN

_LENGTHS = (7, 5)  # of the documents that share a row
_LEAST_ID = 5  # below lie special tokens, such as padding, which some models treat in their own way
_SAME, _UNMOVED = 1e-4, 1e-5  # relative to the largest output, where rounding in fewer bits does not move it more


class Way(StrEnum):
    """Name how a model is told of documents."""

    POSITIONS = "positions"  # position_ids that begin again
    MASK = "mask"  # the same, and an attention mask [R, 1, T, T]
    NONE = ""  # it cannot be told


_WAYS: WeakKeyDictionary[nn.Module, Way] = WeakKeyDictionary()


def arguments_of(model: nn.Module, ids: Tensor, positions: Tensor, documents: Tensor) -> dict[str, Any]:
    """Return the arguments with which a model of transformers keeps the documents of packed rows apart.

    use_cache is False: with a cache, which is their default, the models do not look for documents.

    Args:
        model: The model, or what wraps it under the name `module`.
        ids: The tokens, [R, T].
        positions: The position of each token in its document, [R, T].
        documents: The number of each token's document in its row, [R, T]; -1 for padding.

    Raises:
        OptionError: The model cannot keep them apart.
    """
    if not _shares(documents):
        return {"input_ids": ids, "use_cache": False}
    way = way_of(model)
    if way is Way.NONE:
        raise OptionError(f"documents share rows, and {why_not(model)}; give each a row of its own (LengthBatches)")
    given = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    return given if way is Way.POSITIONS else given | {"attention_mask": _mask(model, documents)}


def why_not(model: nn.Module) -> str:
    """Return why documents must not share a row of a model; "" where they may."""
    if way_of(model) is not Way.NONE:
        return ""
    return (
        f"{type(_inner(model)).__name__} cannot keep them apart: another document in the row changes its outputs for "
        "this one, with positions that begin again and with a mask as well"
    )


def way_of(model: nn.Module) -> Way:
    """Return how a model is told of documents. It is asked once, by a few tokens in evaluation mode."""
    inner = _inner(model)
    if inner not in _WAYS:
        _WAYS[inner] = next((way for way in (Way.POSITIONS, Way.MASK) if _keeps_apart(inner, way)), Way.NONE)
    return _WAYS[inner]


def _inner(model: nn.Module) -> nn.Module:
    while not hasattr(model, "config") and isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def _shares(documents: Tensor) -> bool:
    """Return whether a row holds several documents, or begins with something else than its document."""
    return bool((documents > 0).any())


def _mask(model: nn.Module, documents: Tensor) -> Tensor:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    seen = Documents(documents).mask
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)


def _keeps_apart(model: nn.Module, way: Way) -> bool:
    if getattr(model, "_is_stateful", False):  # a recurrent model carries what it has read into the next document
        return False

    def call(ids: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
        if _shares(documents):
            given["position_ids"] = positions
            if way is Way.MASK:
                given["attention_mask"] = _mask(model, documents)
        found: Tensor = model(**given).logits
        return found

    config: Any = model.config
    vocab_size = config.get_text_config().vocab_size
    try:
        return keeps_apart(model, call, vocab_size)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, NotImplementedError):
        return False  # it takes no such arguments


@torch.no_grad()
def keeps_apart(model: nn.Module, call: Callable[[Tensor, Tensor, Tensor], Tensor], vocab_size: int) -> bool:
    """Return whether a model's outputs for a document depend on nothing but the document.

    Args:
        model: The model. It is asked in evaluation mode, and is in its own modes again afterwards.
        call: Returns the logits [1, T, V] of a row, given tokens, positions and documents, [1, T] each.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    least = min(_LEAST_ID, vocab_size - 2)

    def document(length: int) -> Tensor:
        return torch.randint(least, vocab_size, (length,), generator=generator)

    first, second = map(document, _LENGTHS)
    length = sum(_LENGTHS) + 1  # one place is padding

    def outputs(*documents: Tensor, width: int = length) -> Tensor:
        with torch.autocast(device.type, enabled=False):
            return call(*(x.to(device) for x in _row(documents, width)))[0].float()

    # A compiled model would be compiled for these sizes, and again for those of the training.
    with evaluating(model), SEEN.uncounted(), torch.compiler.set_stance("force_eager"):
        begin = len(first)
        both = outputs(first, second)[begin : begin + len(second)]
        other = outputs((first + 1 - least) % (vocab_size - least) + least, second)[begin : begin + len(second)]
        alone, padded = outputs(second, width=len(second)), outputs(second)[: len(second)]
    size, rounding = float(alone.abs().max()), _gap(alone, padded)
    if not 0 < size < math.inf:
        return False  # nothing can be seen
    return _gap(both, alone) <= max(_SAME * size, 4 * rounding) and _gap(both, other) <= max(
        _UNMOVED * size, rounding / 2
    )


def _row(documents: Sequence[Tensor], width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens, positions and document numbers [1, T] of a row, padded with token 0."""
    padding = torch.zeros(width - sum(map(len, documents)), dtype=torch.int64)
    numbered = [*enumerate(documents), (PADDING, padding)]
    ids = torch.cat([tokens for _, tokens in numbered])
    positions = torch.cat([torch.arange(len(tokens)) for _, tokens in numbered])
    owners = torch.cat([torch.full_like(tokens, number) for number, tokens in numbered])
    return ids[None], positions[None], owners[None]


def _gap(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max())
