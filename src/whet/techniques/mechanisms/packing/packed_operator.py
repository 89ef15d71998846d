"""Compute attention within documents on a CPU as one operator with a backward pass, which torch.compile leaves whole.

Each document is computed by itself, on views of the row: by PyTorch's fused kernel, or in bfloat16 as products and a
softmax. Results and gradients are written where they belong, so that nothing is put together afterwards.

A compiled graph knows no values while it is traced. There `documents_in_mask` finds the documents when the graph runs,
once for a mask, and `attention_within_documents` takes PyTorch's kernel with the mask where there are none.

Shape suffixes: B rows, R rows of a mask (1 or B), H heads, G heads of keys and values, T tokens, D width.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whet.techniques.mechanisms.packing.attention_calls import bias_of
from whet.techniques.mechanisms.packing.packed_attention import PADDING, Documents, stretches_of
from whet.techniques.mechanisms.packing.packed_masks import SEEN, find_documents
from whet.techniques.mechanisms.packing.unfused_attention import num_kept, product_attention, product_attention_backward

NO_DOCUMENTS, CAUSAL, WHOLE = 0, 1, 2  # what a mask does: anything else; documents see earlier tokens, or all of them

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class _Piece(NamedTuple):
    """Describe what is computed at once: some tokens of some rows."""

    place: tuple[slice, slice, slice]  # rows, heads, tokens
    number: int  # of the document, as in Documents
    is_causal: bool
    bias: Tensor | None


def kind_of_documents(documents: Documents | None) -> int:
    """Return what a mask does: CAUSAL, WHOLE or NO_DOCUMENTS."""
    if documents is None:
        return NO_DOCUMENTS
    return CAUSAL if documents.is_causal else WHOLE


def _pieces(q_BHTD: Tensor, mask: Tensor | None, numbers_RT: Tensor, kind: int) -> Iterator[_Piece]:
    """Yield the documents and the stretches of other tokens; all of it at once where there are no documents."""
    every = slice(None)
    if kind == NO_DOCUMENTS:
        yield _Piece((every, every, every), 0, False, bias_of(mask, q_BHTD))
        return
    for r, stretches in enumerate(stretches_of(numbers_RT)):
        rows = slice(r, r + 1) if len(numbers_RT) > 1 else every
        begin = 0
        for length, number in stretches:
            yield _Piece((rows, every, slice(begin, begin + length)), number, kind == CAUSAL, None)
            begin += length


def _like(x_BHTD: Tensor) -> Tensor:
    """Return an empty tensor of the same shape, which lies in memory as the fused kernel's results do: [B, T, H, D]."""
    B, H, T, D = x_BHTD.shape
    return x_BHTD.new_empty(B, T, H, D).transpose(1, 2)


def _by_number(x: Tensor) -> Tensor:
    """Return a tensor whose last dimension has no gaps, as the fused kernel needs it."""
    return x if x.stride(-1) == 1 else x.contiguous()


@torch.library.custom_op("whet::documents_in_mask", mutates_args=(), device_types="cpu")
def documents_in_mask(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the documents lie that a mask keeps apart.

    Args:
        mask: As find_documents takes it.

    Returns:
        The number of each token's document, as in Documents, for each row of the mask, [R, T]; and what the mask does,
        [1]: CAUSAL, WHOLE or NO_DOCUMENTS.
    """
    documents = find_documents(mask)
    shape = _shape_of_numbers(mask)
    numbers = mask.new_zeros(shape, dtype=torch.int64)
    if documents is not None:
        numbers.copy_(documents.numbers)
    return numbers, torch.tensor([kind_of_documents(documents)])


def _shape_of_numbers(mask: Tensor) -> tuple[int, int]:
    return mask.shape[0] if mask.dim() == 4 else 1, mask.shape[-1]


@documents_in_mask.register_fake
def _(mask: Tensor) -> Any:
    return mask.new_empty(_shape_of_numbers(mask), dtype=torch.int64), mask.new_empty(1, dtype=torch.int64)


@torch.library.custom_op("whet::attention_within_documents", mutates_args=(), device_types="cpu")
def attention_within_documents(
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    mask: Tensor | None,
    numbers: Tensor,
    kind: Tensor,
    scale: float,
    products: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return attention within documents, and what backward needs.

    Args:
        k_BGTD: Keys, with as many heads or a divisor of it.
        v_BGTD: Values, likewise, as wide as the keys.
        mask: What the attention takes where `kind` is NO_DOCUMENTS; not read otherwise.
        numbers: The number of each token's document, [1 or B, T], as in Documents.
        kind: CAUSAL, WHOLE or NO_DOCUMENTS, [1].
        scale: What products are multiplied with.
        products: Whether a document is computed as products and a softmax, in bfloat16; H is G then.
        keep: Whether the probabilities are kept for backward then.

    Returns:
        The attended values [B, H, T, D]; the logarithms of the softmaxes' sums [B, H, T], of size 0 with products; and
        the probabilities that are kept, in one dimension.
    """
    what = int(kind)
    SEEN.note(is_packed=what != NO_DOCUMENTS)
    q, k, v = (_by_number(x) for x in (q_BHTD, k_BGTD, v_BGTD))
    out, sums = _like(q), _sums(q, products=products)
    kept: list[Tensor] = []
    for place, number, is_causal, bias in _pieces(q, mask, numbers, what):
        if number < 0:
            seen = v[place].repeat_interleave(q.shape[1] // v.shape[1], 1)
            out[place] = seen if number == PADDING else 0
            if not products:
                sums[place] = 0
        elif products:
            out[place], probabilities = product_attention(q[place], k[place], v[place], bias, is_causal, scale, keep)
            kept.append(probabilities)
        else:
            out[place], sums[place] = _flash(q[place], k[place], v[place], 0.0, is_causal, attn_mask=bias, scale=scale)
    return out, sums, torch.cat(kept) if products and keep and kept else q.new_empty(0)


def _sums(q_BHTD: Tensor, *, products: bool) -> Tensor:
    if products:
        return q_BHTD.new_empty(0)
    dtype = torch.float64 if q_BHTD.dtype is torch.float64 else torch.float32
    return q_BHTD.new_empty(q_BHTD.shape[:3], dtype=dtype)


@torch.library.custom_op("whet::attention_within_documents_backward", mutates_args=(), device_types="cpu")
def attention_within_documents_backward(
    gradient_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    mask: Tensor | None,
    numbers: Tensor,
    kind: Tensor,
    out_BHTD: Tensor,
    sums: Tensor,
    kept: Tensor,
    scale: float,
    products: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values; see attention_within_documents.

    Arguments that are not listed are as forward got them.

    Args:
        gradient_BHTD: The gradient of the attended values.
        out_BHTD: The attended values.
        sums: As forward returned it.
        kept: The probabilities, or nothing, to compute them again.
    """
    g, q, k, v, out = (_by_number(x) for x in (gradient_BHTD, q_BHTD, k_BGTD, v_BGTD, out_BHTD))
    dq, dk, dv = _like(q), _like(k), _like(v)
    used = 0
    for place, number, is_causal, bias in _pieces(q, mask, numbers, int(kind)):
        if number < 0:
            dq[place] = dk[place] = 0
            dv[place] = g[place].unflatten(1, (v.shape[1], -1)).sum(2) if number == PADDING else 0
            continue
        if products:
            num_heads, num_tokens = q[place].shape[:2].numel(), q[place].shape[2]
            size = num_kept(num_heads, num_tokens, num_tokens, is_causal=is_causal) if kept.numel() else 0
            own, used = kept[used : used + size], used + size
            found = product_attention_backward(g[place], q[place], k[place], v[place], bias, own, is_causal, scale)
        else:
            found = _flash_backward(
                *(x[place] for x in (g, q, k, v, out, sums)), 0.0, is_causal, attn_mask=bias, scale=scale
            )
        dq[place], dk[place], dv[place] = found
    return dq, dk, dv


@attention_within_documents.register_fake
def _(q: Tensor, *others: Any) -> Any:
    *_, products, keep = others
    # How many probabilities there are is known only when the documents are.
    num = torch.library.get_ctx().new_dynamic_size() if products and keep else 0
    return _like(q), _sums(q, products=products), q.new_empty(num)


@attention_within_documents_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    return _like(q), _like(k), _like(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale, ctx.products, _ = inputs
    out, sums, kept = output
    ctx.mark_non_differentiable(sums, kept)
    ctx.save_for_backward(*tensors, out, sums, kept)


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
    found = attention_within_documents_backward(gradient, *ctx.saved_tensors, ctx.scale, ctx.products)
    return *found, *[None] * 6


attention_within_documents.register_autograd(_backward, setup_context=_save)
