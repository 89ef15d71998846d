"""Find out whether an attention mask does nothing but keep the documents of packed rows apart, and where they lie.

Two neighbours belong to one document where the later one sees the earlier one, which the diagonal below the main one
says. The mask that such documents have is then built and compared with the whole mask, so that a mask which does
anything else is never taken for one that does not.

What was found is remembered for as long as the mask lives, so that all layers share it. PyTorch counts writes to a
tensor, and a mask that was written to is looked at again. Writes that PyTorch does not count, as through NumPy, are
seen where they move the documents: on a CPU that diagonal is compared each time.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from whet.techniques.mechanisms.packing.attention_calls import FUSED, by_rows
from whet.techniques.mechanisms.packing.packed_attention import BLIND, PADDING, Documents, Stretch

_HIDES = -1e30  # what is added to a score, at most, so that its probability is 0 whatever the score is
_LEAST_FLEX_WIDTH = 16  # numbers of a head
_MOST_PLACES = 64  # of one storage that are remembered: a long mask may be cut to many lengths


@torch.no_grad()
def find_documents(mask: Tensor) -> Documents | None:
    """Return the documents that a mask keeps apart; None where it does anything else.

    Args:
        mask: True where a key is seen, or what is added to the scores: 0, or at most -1e30 where a key is not seen. It
            has as many queries as keys, and two to four dimensions.

    Returns:
        The documents of each row, or of one row where all rows have the same mask.
    """
    rows = by_rows(mask)
    numbers = _numbers(rows)
    documents = Documents(numbers, is_causal=not bool(_sees(rows[:, 0].diagonal(1, -2, -1)).any()))
    for row, stretches in zip(rows, documents.stretches, strict=True):
        if not _is_mask_of(row, stretches, is_causal=documents.is_causal):
            return None
    return documents


def _sees(mask: Tensor) -> Tensor:
    """Return which keys are seen, as bool."""
    return mask if mask.dtype is torch.bool else mask == 0


def _continues(rows_RHTT: Tensor) -> Tensor:
    """Return which tokens, from the second on, see the one before them: [R, T - 1]."""
    return _sees(rows_RHTT[:, 0].diagonal(-1, -2, -1))


def _numbers(rows_RHTT: Tensor) -> Tensor:
    """Return the number of each token's document, as it would be if the mask kept documents apart: [R, T]."""
    continues = _continues(rows_RHTT)
    edge = continues.new_ones(len(continues), 1)
    begins = torch.cat((edge, ~continues), dim=1)
    ends = torch.cat((~continues, edge), dim=1)
    itself = _sees(rows_RHTT[:, 0].diagonal(0, -2, -1))
    numbers = begins.cumsum(1) - 1
    is_alone = begins & ends
    return numbers.masked_fill(is_alone & itself, PADDING).masked_fill(is_alone & ~itself, BLIND)


def _is_mask_of(row_HTT: Tensor, stretches: Sequence[Stretch], *, is_causal: bool) -> bool:
    """Return whether the mask of a row is exactly that of some documents, for each of its heads."""
    seen = _sees(row_HTT)
    # Where a row of the softmax is empty, nothing but -inf gives zeros; other numbers give the mean of all values.
    most = -math.inf if any(number == BLIND for _, number in stretches) else _HIDES
    if row_HTT.dtype is not torch.bool and not torch.equal(row_HTT <= most, ~seen):
        return False
    wanted = _wide(_row_mask(stretches, is_causal=is_causal, device=row_HTT.device))
    return all(torch.equal(_wide(head), wanted) for head in seen)


def _row_mask(stretches: Sequence[Stretch], *, is_causal: bool, device: torch.device) -> Tensor:
    """Return which token of a row sees which, [T, T], bool: block by block, which costs less than all pairs."""
    num_tokens = sum(length for length, _ in stretches)
    mask = torch.zeros(num_tokens, num_tokens, dtype=torch.bool, device=device)
    begin = 0
    for length, number in stretches:
        block = mask[begin : begin + length, begin : begin + length]
        if number == PADDING:
            block.fill_diagonal_(True)
        elif number != BLIND:
            block.fill_(True)
            if is_causal:
                block.tril_()
        begin += length
    return mask


def _wide(mask_TT: Tensor) -> Tensor:
    """Return bools seen as numbers of 8 bytes where they can be: these are compared faster."""
    mask_TT = mask_TT.contiguous()
    is_aligned = mask_TT.shape[-1] % 8 == 0 and mask_TT.storage_offset() % 8 == 0
    return mask_TT.view(torch.int64) if is_aligned else mask_TT


class _Found(NamedTuple):
    """Hold what was found in a mask, and by what it is known to be the same."""

    version: int
    continues: Tensor
    documents: Documents | None


class KnownMasks:
    """Remember the documents of masks while these live."""

    def __init__(self) -> None:
        self._found: dict[StorageWeakRef, dict[Any, _Found]] = {}

    def documents(self, mask: Tensor) -> Documents | None:
        """Return what `find_documents` does, which is called again only where the mask is another one.

        Views of the same memory, such as `mask[:T, :T]` in each layer, are one mask.
        """
        if mask.is_inference():
            return find_documents(mask)  # writes to it are not counted
        place = (mask.dtype, mask.shape, mask.stride(), mask.storage_offset())
        continues = _continues(by_rows(mask))
        storage = StorageWeakRef(mask.untyped_storage())
        known = self._found.get(storage, {}).get(place)
        # On a GPU, comparing would wait for the device in each layer.
        is_same = known is not None and known.version == mask._version
        if known is not None and is_same and (mask.is_cuda or torch.equal(known.continues, continues)):
            return known.documents
        found = _Found(mask._version, continues.clone(), find_documents(mask))
        self._remember(storage, place, found)
        return found.documents

    def _remember(self, storage: StorageWeakRef, place: Any, found: _Found) -> None:
        for other in [other for other in list(self._found) if other.expired()]:
            self._found.pop(other, None)
        places = self._found.setdefault(storage, {})
        if len(places) >= _MOST_PLACES:
            places.clear()
        places[place] = found


KNOWN = KnownMasks()


class SeenMasks:
    """Count this process's attentions by mask: `num_packed` where it only keeps documents apart, else `num_other`."""

    def __init__(self) -> None:
        self.num_packed = self.num_other = 0

    def note(self, *, is_packed: bool) -> None:
        if is_packed:
            self.num_packed += 1
        else:
            self.num_other += 1

    def forget(self) -> None:
        self.num_packed = self.num_other = 0

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave out what is looked at while the context lasts."""
        before = self.num_packed, self.num_other
        try:
            yield
        finally:
            self.num_packed, self.num_other = before


SEEN = SeenMasks()


def may_be_packed(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, *, is_causal: bool
) -> bool:
    """Return whether a call of attention could be computed document by document, if its mask keeps them apart.

    Its values and its dropout are not looked at: attention that drops probabilities stays as it is.
    """
    if attn_mask is None or is_causal or dropout_p != 0.0 or attn_mask.requires_grad:
        return False
    if any(type(x) not in (Tensor, torch.nn.Parameter) for x in (query, key, value, attn_mask)):
        return False  # a subclass knows what it does
    num_tokens = query.shape[-2]
    return (
        query.dim() == 4
        and key.shape == value.shape
        and query.shape[0] == key.shape[0]
        and query.shape[-1] == key.shape[-1]
        and num_tokens == key.shape[-2]
        and num_tokens > 1
        and 2 <= attn_mask.dim() <= 4
        and attn_mask.shape[-2:] == (num_tokens, num_tokens)
        and (attn_mask.dim() < 3 or attn_mask.shape[-3] in (1, query.shape[1]))
        and (attn_mask.dim() < 4 or attn_mask.shape[0] in (1, query.shape[0]))
        and (attn_mask.dtype is torch.bool or attn_mask.is_floating_point())
        and query.device.type == attn_mask.device.type
        and (query.device.type == "cpu" or _may_be_flex(query))
    )


def _may_be_flex(query: Tensor) -> bool:
    """Return whether FlexAttention takes such queries, on a GPU."""
    return query.is_cuda and query.shape[-1] >= _LEAST_FLEX_WIDTH and query.dtype != torch.float64


class AttentionCounter(TorchFunctionMode):
    """Count the products of attention while this is entered, and those that would be left within documents.

    Attributes:
        num_products: Pairs of a query and a key, over all rows and heads, that attention multiplies.
        num_within: Those of them that are left where each document is computed by itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_products = self.num_within = 0

    @property
    def share(self) -> float:
        """Return the share of the products that is left within documents; 1.0 where there is no attention."""
        return self.num_within / self.num_products if self.num_products else 1.0

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is FUSED and not torch.compiler.is_compiling():
            self.count(*args, **kwargs)
        return function(*args, **kwargs)

    def count(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **_: Any,
    ) -> None:
        """Count one call of scaled_dot_product_attention."""
        num_heads = query.shape[:-2].numel()
        num_products = num_heads * query.shape[-2] * key.shape[-2] // (2 if is_causal else 1)
        documents = None
        if may_be_packed(query, key, value, attn_mask, dropout_p, is_causal=is_causal):
            assert attn_mask is not None
            documents = KNOWN.documents(attn_mask)
        self.num_products += num_products
        if documents is None:
            self.num_within += num_products
        else:
            self.num_within += num_heads * documents.num_products // len(documents.numbers)
