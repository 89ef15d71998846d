"""Attention document by document, held against float64 with the dense mask."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_rows import Attention, as_kind, inputs, mask_of, results, rows_of_numbers, within_documents_of
from torch import Tensor

from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.packing import document_masking, packed_operator
from whet.techniques.mechanisms.packing.attention_calls import FUSED
from whet.techniques.mechanisms.packing.packed_attention import Documents
from whet.techniques.mechanisms.packing.packed_masks import SEEN
from whet.techniques.mechanisms.packing.packing import PADDING, token_batch
from whet.techniques.mechanisms.packing.unfused_attention import AttentionByProducts, AttentionComputedAgain


@pytest.fixture(autouse=True)
def _own_counts() -> Iterator[None]:
    SEEN.forget()
    yield
    SEEN.forget()


@settings(deadline=None, max_examples=60)
@given(
    numbers=rows_of_numbers(),
    is_causal=st.booleans(),
    kind=st.sampled_from(["bool", "-inf"]),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (4, 1)]),
    scale=st.sampled_from([None, 0.3]),
    shared=st.booleans(),
)
def test_forward_and_gradients(
    numbers: Tensor, kind: str, heads: tuple[int, int], scale: float | None, *, is_causal: bool, shared: bool
) -> None:
    """Against PyTorch's own attention with the dense mask, in float64, for every token: padding too."""
    SEEN.forget()
    mask = mask_of(numbers[:1] if shared else numbers, is_causal=is_causal)
    qkv = inputs(len(numbers), *heads, numbers.shape[1])
    options = {"attn_mask": as_kind(mask, kind).to(qkv[0].dtype if kind != "bool" else mask.dtype), "scale": scale}
    options["enable_gqa"] = heads[0] != heads[1]
    wanted = results(Attention(**options), qkv)
    found = results(within_documents_of(**options), qkv)
    assert (SEEN.num_packed, SEEN.num_other) == (1, 0)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(numbers=rows_of_numbers(), data=st.data())
def test_a_mask_that_is_almost_one_of_documents(numbers: Tensor, data: st.DataObject) -> None:
    """With one bit flipped the result is PyTorch's own, bit by bit, unless it is the mask of other documents."""
    SEEN.forget()
    mask = mask_of(numbers, is_causal=True)
    rows, _, length, _ = mask.shape
    place = tuple(data.draw(st.integers(0, size - 1)) for size in (rows, 1, length, length))
    mask[place] = ~mask[place]
    qkv = inputs(rows, 2, 2, length)
    wanted = results(Attention(attn_mask=mask), qkv)
    found = results(within_documents_of(attn_mask=mask), qkv)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0 if SEEN.num_other else 1e-12)


def test_one_bit_inside_of_documents_is_left_to_pytorch() -> None:
    mask = mask_of(torch.tensor([[0] * 6 + [1] * 6]), is_causal=True)
    for place in ((0, 0, 11, 0), (0, 0, 4, 1), (0, 0, 2, 9)):
        other = mask.clone()
        other[place] = ~other[place]
        SEEN.forget()
        qkv = inputs(1, 2, 2, 12)
        for mine, theirs in zip(
            results(within_documents_of(attn_mask=other), qkv), results(Attention(attn_mask=other), qkv), strict=True
        ):
            assert torch.equal(mine, theirs)
        assert (SEEN.num_packed, SEEN.num_other) == (0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_that_of_the_dense_mask(dtype: torch.dtype) -> None:
    """Each result is at most twice as far from float64 as that of PyTorch's kernel with the mask."""
    numbers = token_batch([[[1] * n for n in (40, 1, 23)], [[1] * n for n in (30, 20)]], 64).documents
    mask = Documents(numbers).mask
    exact = inputs(2, 2, 2, 64)
    rounded = [x.detach().to(dtype).requires_grad_() for x in exact]
    wanted = results(Attention(attn_mask=mask), [x.detach().double().requires_grad_() for x in rounded])
    dense = results(Attention(attn_mask=mask), rounded)
    found = results(within_documents_of(attn_mask=mask), rounded)
    assert SEEN.num_packed == 1
    for mine, theirs, right in zip(found, dense, wanted, strict=True):
        assert mine.dtype is dtype
        assert (mine.double() - right).norm() <= 2 * (theirs.double() - right).norm() + 1e-6 * right.norm()


def test_what_stays_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout, masks that learn, other lengths of keys, values of another width, and calls without a mask."""
    monkeypatch.setattr(document_masking, "attention_within_documents", None)  # a call fails
    mask = mask_of(torch.tensor([[0, 0, 0, 1, 1, 1]]), is_causal=True)
    q, k, v = inputs(1, 2, 2, 6)
    learned = as_kind(mask, "-inf").double().requires_grad_()
    for options in ({"attn_mask": mask, "dropout_p": 0.1}, {"attn_mask": learned}, {"is_causal": True}, {}):
        within_documents_of(**options)(q, k, v)
    within_documents_of(attn_mask=mask[..., :3, :])(q[:, :, :3], k, v)
    within_documents_of(attn_mask=mask)(q, k, v[..., :4])
    within_documents_of(attn_mask=mask[..., :1, :])(q, k, v)
    within_documents_of(attn_mask=mask[0])(q[0], k[0], v[0])
    with pytest.raises(TypeError, match="not callable"):
        within_documents_of(attn_mask=mask)(q, k, v)
    assert torch.overrides._len_torch_function_stack() == 0, "no mode is left behind"


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_documents_as_products(monkeypatch: pytest.MonkeyPatch, *, is_causal: bool, keep: bool) -> None:
    """Beside product_attention, inside autocast: documents are found first, and each is computed by products."""
    numbers = token_batch([[[1] * n for n in (300, 1, 23)], [[1] * n for n in (60, 200)]], 330).documents
    mask = Documents(numbers, is_causal).mask
    qkv = [x.detach().float().requires_grad_() for x in inputs(2, 4, 2, 330)]
    options = {"attn_mask": mask, "enable_gqa": True}
    lengths: list[int] = []
    original = packed_operator.product_attention

    def counted(q: Tensor, *args: Any) -> Any:
        lengths.append(q.shape[2])
        return original(q, *args)

    monkeypatch.setattr(packed_operator, "product_attention", counted)
    module = within_documents_of(**options)
    extend(module, AttentionByProducts if keep else AttentionComputedAgain)
    with torch.autocast("cpu", torch.bfloat16):
        found = results(module, qkv)
        theirs = results(Attention(**options), qkv)
    assert lengths == [300, 23, 60, 200], "a document of one token is its own value"
    right = results(Attention(**options), [x.detach().bfloat16().double().requires_grad_() for x in qkv])
    for mine, other, wanted in zip(found, theirs, right, strict=True):
        allowed = 3 * (other.double() - wanted).norm() + 2e-3 * wanted.norm()
        assert (mine.double() - wanted).norm() <= allowed
    assert found[0].dtype is torch.bfloat16


def test_the_operators_keep_their_promises() -> None:
    mask = mask_of(torch.tensor([[0] * 9 + [1] * 6 + [PADDING] * 5]), is_causal=True)
    other = mask.clone()
    other[0, 0, 0, 5] = True
    qkv = [x.float().detach().requires_grad_() for x in inputs(2, 4, 2, 20)]
    for one in (mask, other, torch.ones_like(mask)):
        torch.library.opcheck(torch.ops.whet.documents_in_mask.default, (one,))
        found = packed_operator.documents_in_mask(one)
        arguments = (*qkv, one, *found, 0.3, False, False)
        torch.library.opcheck(torch.ops.whet.attention_within_documents.default, arguments)


@pytest.mark.filterwarnings("ignore")  # that it is not compiled
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_blocks_of_flex_attention(block_size: int, *, is_causal: bool) -> None:
    """The way of a GPU, forward on the CPU: blocks without a document are left out, and padding sees itself."""
    numbers = token_batch([[[1] * 40, [1] * 20], [[1] * 16, [1] * 16, [1] * 16]], 64).documents
    documents = Documents(numbers, is_causal)
    q, k, v = (x.detach().float() for x in inputs(2, 4, 2, 64))
    found = document_masking.flex_attention(q, k, v, documents, block_size=block_size)
    wanted = FUSED(q, k, v, attn_mask=documents.mask, enable_gqa=True)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    blocks = documents.block_mask(block_size)
    assert (block_size, block_size) == blocks.BLOCK_SIZE
    if block_size == 16 and is_causal:
        assert blocks.to_dense()[1, 0].tolist() == torch.eye(4, dtype=torch.int32).tolist()
    one = document_masking._for_rows(Documents(numbers[:1], is_causal), 2)
    torch.testing.assert_close(one.mask[1], documents.mask[0])


@pytest.mark.gpu
@pytest.mark.parametrize("block_size", [128, 64, 256])
def test_on_a_gpu(block_size: int) -> None:
    """FlexAttention with its backward pass, against the dense mask."""
    numbers = token_batch([[[1] * 300, [1] * 100], [[1] * 60, [1] * 200, [1] * 190]], 512).documents.cuda()
    mask = Documents(numbers).mask
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 512, n, 32) for n in (4, 2, 2)]
    qkv = [torch.randn(s, generator=generator).transpose(1, 2).cuda().requires_grad_() for s in shapes]
    options = {"attn_mask": mask, "enable_gqa": True}
    module = Attention(**options)
    extend(module, document_masking.with_block_size(block_size))
    out, wanted = module(*qkv), Attention(**options)(*qkv)
    assert (SEEN.num_packed, SEEN.num_other) == (1, 0)
    torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-3)
    found = torch.autograd.grad(out.sin().sum(), qkv)
    for mine, theirs in zip(found, torch.autograd.grad(wanted.sin().sum(), qkv), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
