"""What benchmarks/operators.py times: each operator on the shapes of the 246M model, beside torch's own ways.

Weights, keys and values come in several copies taken in turn, so that they are read from memory, as those of a model's
many layers are. "whet" is the operator as torch calls it, "kernel" the C++ function that it calls.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from whet.kernels.build import library
from whet.kernels.dispatch import pointer
from whet.kernels.gated_mlp import PackedMlp, gated_mlp, pack_mlp
from whet.kernels.linear import layout, linear, pack_weights
from whet.kernels.linear.layout import Kind
from whet.kernels.linear.packed import PackedMatrix, large_pages
from whet.kernels.paged_attention import attend
from whet.kernels.paged_attention.cache import BLOCK_SIZE, Batch, KvCache
from whet.kernels.paged_attention.native import paged_attention_native
from whet.kernels.sample import sample

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 1024, 16, 4, 64, 2816, 32000
WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM
LAYER = {  # outputs, inputs
    "qkv": (WIDTH, HIDDEN),
    "o": (HIDDEN, HEADS * HEAD_DIM),
    "gate+up": (2 * FFN, HIDDEN),
    "down": (HIDDEN, FFN),
}
ROWS = (1, 4, 16, 64, 512)
EPS = 1e-5
_KINDS = {"int8": (Kind.S8, "int8"), "int4": (Kind.S4, "int8"), "bf16": (Kind.BF16, "bfloat16")}
_FROM_MEMORY = 96 * 2**20  # bytes of all copies: three times this machine's last-level cache

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One operator on one shape; the calls of a way are made in turn.

    num_bytes, num_ops: what has to be moved and computed at least. dtype: of its products.
    """

    operator: str
    what: str
    rows: int
    num_bytes: int
    num_ops: int
    dtype: str
    ways: dict[str, Sequence[Call]]


def cases(operator: str) -> Iterator[Case]:
    """Those of one name in OPERATORS; each may go before the next is made."""
    return _OPERATORS[operator]()


def _linear(name: str) -> Iterator[Case]:
    kind, dtype = _KINDS[name]
    for what, (N, K) in (LAYER | {"head": (VOCAB, HIDDEN)}).items():
        weight_NK = torch.randn(N, K) / K**0.5
        first = pack_weights(weight_NK, kind)
        packed = [first, *(_copy(first) for _ in range(_num_copies(first.num_bytes) - 1))]
        theirs = _torch_ways(name, weight_NK)
        for M in ROWS if what != "head" else ROWS[:-1]:  # logits are wanted for few tokens
            x_MK = torch.randn(M, K)
            ways: dict[str, Sequence[Call]] = {
                "whet": [partial(linear, x_MK, weights) for weights in packed],
                "kernel": [_linear_kernel(weights, x_MK) for weights in packed],
            }
            for way, functions in theirs.items():
                given = torch.randint(-127, 128, x_MK.shape, dtype=torch.int8) if way == "_int_mm" else x_MK.bfloat16()
                ways[way] = [partial(function, given) for function in functions]
            num_bytes = first.num_bytes + 4 * M * (N + K)
            yield Case(f"linear_{name}", what, M, num_bytes, 2 * M * N * K, dtype, ways)


def _gated_mlp(name: str) -> Iterator[Case]:
    kind, dtype = _KINDS[name]
    gate, up, down = (torch.randn(shape) / 32 for shape in ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)))
    first = pack_mlp(gate, up, down, kind)
    num_weight_bytes = first.gate_up.num_bytes + first.down.num_bytes
    packed = [PackedMlp(_copy(first.gate_up), _copy(first.down)) for _ in range(_num_copies(num_weight_bytes))]
    theirs = _torch_ways(name, torch.cat((gate, up))), _torch_ways(name, down)
    for M in ROWS:
        x_MK = torch.randn(M, HIDDEN)
        ways: dict[str, Sequence[Call]] = {"whet": [partial(gated_mlp, x_MK, weights) for weights in packed]}
        for way in theirs[0].keys() - {"_int_mm"}:
            pairs = zip(theirs[0][way], theirs[1][way], strict=False)
            ways[way] = [partial(_torch_mlp, x_MK.bfloat16(), *pair) for pair in pairs]
        num_ops = 6 * M * HIDDEN * FFN
        yield Case(f"gated_mlp_{name}", "layer", M, num_weight_bytes + 8 * M * HIDDEN, num_ops, dtype, ways)


def _torch_mlp(x: Tensor, gate_up: Callable[[Tensor], Tensor], down: Callable[[Tensor], Tensor]) -> Tensor:
    gate, up = gate_up(x).chunk(2, dim=-1)
    return down(F.silu(gate) * up)


def _sample() -> Iterator[Case]:
    for rows in (1, 16, 64):
        logits_RV = torch.randn(rows, VOCAB) * 3
        ones, zeros, none = torch.ones(rows), torch.zeros(rows), torch.zeros(rows, dtype=torch.int32)
        ids_R, uniform_R = torch.empty(rows, dtype=torch.int64), torch.rand(rows)
        rules = {
            "greedy": (zeros, none, ones, zeros, uniform_R),
            "temperature": (ones, none, ones, zeros, uniform_R),
            "top_k 40": (ones, none + 40, ones, zeros, uniform_R),
            "top_p 0.9": (ones, none, ones * 0.9, zeros, uniform_R),
            "min_p 0.05": (ones, none, ones, zeros + 0.05, uniform_R),
        }
        theirs = {
            "greedy": ("argmax", partial(torch.argmax, logits_RV, 1)),
            "temperature": ("softmax, multinomial", partial(_multinomial, logits_RV)),
            "top_k 40": ("topk, multinomial", partial(_top_k, logits_RV)),
            "top_p 0.9": ("sort, multinomial", partial(_top_p, logits_RV)),
            "min_p 0.05": ("softmax, multinomial", partial(_min_p, logits_RV)),
        }
        for what, columns in rules.items():
            tensors = (logits_RV, *columns, ids_R)
            arguments = (pointer(logits_RV), rows, VOCAB, *(pointer(tensor) for tensor in (*columns, ids_R)))
            name, call = theirs[what]
            ways = {"whet": [partial(sample, logits_RV, *columns)], name: [call]}
            ways["kernel"] = [_bound("whet_sample", tensors, *arguments)]
            yield Case("sample", what, rows, 4 * rows * VOCAB, 0, "float32", ways)


def _multinomial(logits_RV: Tensor) -> Tensor:
    return torch.multinomial(torch.softmax(logits_RV, 1), 1)


def _top_k(logits_RV: Tensor) -> Tensor:
    values, ids = logits_RV.topk(40, 1)
    return ids.gather(1, torch.multinomial(torch.softmax(values, 1), 1))


def _top_p(logits_RV: Tensor) -> Tensor:
    probs, ids = torch.softmax(logits_RV, 1).sort(1, descending=True)
    probs[probs.cumsum(1) - probs >= 0.9] = 0
    return ids.gather(1, torch.multinomial(probs, 1))


def _min_p(logits_RV: Tensor) -> Tensor:
    probs = torch.softmax(logits_RV, 1)
    return torch.multinomial(torch.where(probs >= 0.05 * probs.amax(1, keepdim=True), probs, 0), 1)


def _attention(dtype: torch.dtype, name: str) -> Iterator[Case]:
    """(sequences, tokens of each that are new, context)"""
    for num_seqs, num_new, context in ((1, 1, 512), (1, 1, 4096), (16, 1, 512), (64, 1, 256), (1, 512, 512)):
        T, num_blocks = num_seqs * num_new, num_seqs * context // BLOCK_SIZE
        caches = [_filled(num_blocks, dtype)]
        cache_bytes = sum(t.nbytes for t in (caches[0].keys, caches[0].values, caches[0].key_scales) if t is not None)
        caches += [_filled(num_blocks, dtype) for _ in range(_num_copies(cache_bytes) - 1)]
        batch = Batch(
            torch.arange(context - num_new, context, dtype=torch.int32).repeat(num_seqs),
            torch.arange(0, T + 1, num_new, dtype=torch.int32),
            torch.full((num_seqs,), context, dtype=torch.int32),
            torch.randperm(num_blocks, dtype=torch.int32).view(num_seqs, -1),
        )
        qkv_TC, scale = torch.randn(T, WIDTH), HEAD_DIM**-0.5
        ways: dict[str, Sequence[Call]] = {
            "whet": [partial(attend, qkv_TC, cache, batch, scale) for cache in caches],
            "kernel": [
                partial(paged_attention_native, library(), qkv_TC, [cache], batch, scale, 0) for cache in caches
            ],
        }
        q, k, v = (
            torch.randn(num_seqs, n, L, HEAD_DIM).bfloat16() for n, L in ((HEADS, num_new), *((KV_HEADS, context),) * 2)
        )
        copies = [(k.clone(), v.clone()) for _ in range(_num_copies(2 * k.nbytes))]
        attention = partial(F.scaled_dot_product_attention, is_causal=num_new > 1, enable_gqa=True)
        ways["SDPA bf16"] = [partial(attention, q, *pair) for pair in copies]
        seen = context if num_new == 1 else context / 2
        num_ops = int(4 * T * HEADS * HEAD_DIM * seen)
        what = f"{num_seqs} x {num_new} of {context}"
        num_bytes = cache_bytes + 4 * T * (WIDTH + HEADS * HEAD_DIM)
        yield Case(f"paged_attention_{name}", what, T, num_bytes, num_ops, "bfloat16", ways)


def _filled(num_blocks: int, dtype: torch.dtype) -> KvCache:
    cache = KvCache.empty(num_blocks, KV_HEADS, HEAD_DIM, dtype)
    for tensor in (cache.keys, cache.values):
        tensor.copy_(torch.randint(-100, 100, tensor.shape[1:]))
    if cache.key_scales is not None and cache.value_scales is not None:
        return replace(cache, key_scales=cache.key_scales + 0.01, value_scales=cache.value_scales + 0.01)
    return cache


def _torch_ways(name: str, weight_NK: Tensor) -> dict[str, list[Callable[[Tensor], Tensor]]]:
    """Functions of an input in bf16 (of int8 in _int_mm), each on a copy of the weights."""
    weight = weight_NK.bfloat16()
    ways: dict[str, list[Callable[[Tensor], Tensor]]] = {
        "F.linear bf16": [partial(_swapped_linear, weight.clone()) for _ in range(_num_copies(weight.nbytes))]
    }
    scale_N1 = weight_NK.abs().amax(1, keepdim=True) / 127
    values_NK, scale_N = (weight_NK / scale_N1).round().to(torch.int8), scale_N1[:, 0].bfloat16()
    if name == "int8":
        copies = [values_NK.clone() for _ in range(_num_copies(values_NK.nbytes))]
        ways["_weight_int8pack_mm"] = [partial(_int8pack, copy, scale_N) for copy in copies]
        ways["_int_mm"] = [partial(_int_mm, copy) for copy in copies]
    if name == "int4":
        packed = torch._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, weight_NK.shape, dtype=torch.int32), 1)
        scales = torch.rand(weight_NK.shape[1] // 32, weight_NK.shape[0], 2).bfloat16()
        ways["_weight_int4pack_mm"] = [
            partial(_int4pack, packed.clone(), scales) for _ in range(_num_copies(packed.nbytes))
        ]
    return ways


def _swapped_linear(weight_NK: Tensor, x_MK: Tensor) -> Tensor:
    return F.linear(x_MK, weight_NK)


def _int8pack(values_NK: Tensor, scale_N: Tensor, x_MK: Tensor) -> Tensor:
    return torch._weight_int8pack_mm(x_MK, values_NK, scale_N)


def _int_mm(values_NK: Tensor, x_MK: Tensor) -> Tensor:
    return torch._int_mm(x_MK, values_NK.T)


def _int4pack(packed: Tensor, scales: Tensor, x_MK: Tensor) -> Tensor:
    return torch._weight_int4pack_mm_for_cpu(x_MK, packed, 32, scales)


def _num_copies(num_bytes: int) -> int:
    return max(1, -(-_FROM_MEMORY // num_bytes))


def _copy(weights: PackedMatrix) -> PackedMatrix:
    data = large_pages(weights.num_bytes).copy_(weights.data)
    return PackedMatrix(weights.kind, weights.num_outputs, weights.num_inputs, data, weights.scale, weights.bias)


def _linear_kernel(weights: PackedMatrix, x_MK: Tensor) -> Call:
    M, K = x_MK.shape
    out_MN = torch.empty(M, weights.num_outputs)
    stride = layout.row_bytes(weights.kind, K)
    rows, scales, sums = torch.empty(M * stride, dtype=torch.uint8), torch.empty(M), torch.empty(M)
    tensors = (x_MK, rows, scales, sums, out_MN)
    x, *rest = (pointer(tensor) for tensor in tensors)
    kept = (weights, *tensors)
    return _bound("whet_linear", kept, ctypes.byref(weights.struct), x, M, K, weights.num_outputs, *rest)


def _bound(function: str, kept: object, *arguments: object) -> Call:
    """A call of one of the library's functions; what its arguments point to is kept."""
    call = partial(getattr(library().functions, function), *arguments)
    call.kept = kept  # type: ignore[attr-defined]
    return call


_OPERATORS: dict[str, Callable[[], Iterator[Case]]] = {
    **{f"linear_{name}": partial(_linear, name) for name in _KINDS},
    **{f"gated_mlp_{name}": partial(_gated_mlp, name) for name in _KINDS},
    "paged_attention_bf16": partial(_attention, torch.bfloat16, "bf16"),
    "paged_attention_int8": partial(_attention, torch.int8, "int8"),
    "sample": _sample,
}
OPERATORS = tuple(_OPERATORS)
