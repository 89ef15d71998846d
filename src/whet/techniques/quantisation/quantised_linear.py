"""Compute linear layers and embeddings whose weights have 8 or 4 bits.

The weights equal those of an engine bit for bit: whet.kernels.linear.quantise rounds both. Three ways multiply them:

    PackedLinear             whet's own operator, which rounds activations to int8 a row
    Int8Linear, Int4Linear   few rows: torch's own kernels, in floating point
                             many rows: the weights are unpacked at each call, and the product is the library's

All are plain modules with integer buffers, which torch.export, compilers and files handle without special support.

Shape suffixes: R rows, K inputs, N outputs, G groups of inputs, V vocabulary, D width.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.errors import WhetError
from whet.kernels import dispatch
from whet.kernels.build import Isa
from whet.kernels.linear import linear_int4, linear_int8, pack_weights
from whet.kernels.linear.layout import Kind
from whet.kernels.linear.quantise import GROUP_SIZE, quantise_int4, quantise_int8
from whet.measure.machine import describe
from whet.techniques.quantisation import quantisable
from whet.techniques.rewriting.graph import Traced, trace
from whet.techniques.technique import Candidate

# Measured on a Xeon with AVX-512 and AMX, one thread, 2048 x 2048, in ms, torch's int8 kernel against unpacking:
# 4 rows 0.39 : 1.3, 16 rows 2.4 : 2.6, 128 rows 12.7 : 2.0.
FEW_ROWS = 8

# docs/results/operators.json, us, whet's operator against torch's kernel. int8, a layer's four matrices and the head: 1
# row 342 : 418 and 964 : 1158, 4 rows 371 : 639 and 1129 : 1747. int4, 1 and 4 rows: 31 : 25 and 60 : 45 with 1 million
# weights, 70 : 62 and 111 : 110 with 2.9, 115 : 120 and 187 : 244 with 5.8, 670 : 750 and 976 : 1259 with 32.8.
_LARGE_INT4 = 4 * 2**20

# torch's int8 kernel reads beyond the end of rows that are no multiple of this, and may end the process (torch 2.13);
# its 4-bit kernel refuses numbers of outputs that are none.
_KERNEL_WIDTH = 16

Replace = Callable[[nn.Linear, int], nn.Module | None]


def int8_linear(linear: nn.Linear, num_rows: int) -> nn.Module:
    """Return the layer with int8 weights, as the module that is fastest for `num_rows` rows."""
    return PackedLinear(linear, Kind.S8) if _suits_whet(num_rows) else Int8Linear(linear, num_rows)


def int4_linear(linear: nn.Linear, num_rows: int) -> nn.Module:
    """Return a layer, whose inputs fill whole groups, with int4 weights, as the module fastest for `num_rows` rows."""
    if _suits_whet(num_rows) and linear.weight.numel() >= _LARGE_INT4:
        return PackedLinear(linear, Kind.S4)
    return Int4Linear(linear, num_rows)


def _suits_whet(num_rows: int) -> bool:
    """Return whether whet's operator is worth trying: for few rows, on the builds for which it was measured.

    With many rows, torch's own threads compute the other operators of the model, and then spin on the cores that
    whet's threads need (docs/log.md: a quarter of a call, beside another runtime).
    """
    if num_rows > FEW_ROWS:
        return False
    library = dispatch.kernels()
    return library is not None and library.isa in (Isa.AVX512, Isa.AVX512_VNNI)


class PackedLinear(nn.Module):
    """Compute x @ weight.T + bias by whet::linear_int8 or whet::linear_int4, which load without a compiler."""

    packed: Tensor  # uint8, as whet.kernels.linear.layout says
    scale: Tensor  # float32 [N padded]
    bias: Tensor | None  # float32 [N padded]

    def __init__(self, linear: nn.Linear, kind: Kind) -> None:
        super().__init__()
        weights = pack_weights(linear.weight.detach(), kind, None if linear.bias is None else linear.bias.detach())
        self.register_buffer("packed", weights.data.clone())  # without the rest of its large pages
        self.register_buffer("scale", weights.scale)
        self.register_buffer("bias", weights.bias)
        self.num_outputs = weights.num_outputs
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        operator = linear_int8 if self.kind is Kind.S8 else linear_int4  # which a deep copy could not hold
        return operator(x, self.packed, self.scale, self.bias, self.num_outputs)


class Int8Linear(nn.Module):
    """Compute x @ weight.T + bias with int8 weights and one scale per output."""

    weight: Tensor  # int8 [N, K]
    scale: Tensor  # float32 [N]
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, num_rows: int) -> None:
        super().__init__()
        weights = quantise_int8(linear.weight.detach())
        self.register_buffer("weight", weights.values_NK)
        self.register_buffer("scale", weights.scale_N)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())
        self.has_few_rows = num_rows <= FEW_ROWS and linear.in_features % _KERNEL_WIDTH == 0
        self.dtype = product_dtype(self.has_few_rows)

    def forward(self, x: Tensor) -> Tensor:
        if self.has_few_rows:
            ones_N = torch.ones_like(self.scale, dtype=self.dtype)  # bfloat16 would round the scales
            y_RN = torch.ops.aten._weight_int8pack_mm(_few_rows(x, self.dtype), self.weight, ones_N)
        else:
            y_RN = F.linear(_rows(x, self.dtype), self.weight.to(self.dtype))
        return _finish(y_RN * self.scale, x, self.bias)


class Int4Linear(nn.Module):
    """Compute x @ weight.T + bias with 4-bit weights, a factor per output and group, and a scale per output.

    The factors are whole numbers from 1 to 15.

    For few rows, the weights have the layout of torch's kernel for this chip, which no other chip can read
    (`packed_for`). For many rows, a byte holds a column of a group's first half (low bits) and one of its second half
    (high bits).
    """

    packed: Tensor  # uint8, N * K / 2 bytes
    scale: Tensor  # float32 [N]
    ratio_offset: Tensor  # [G, N, 2], with few rows; torch's kernel wants offsets, which are zeros
    ratio: Tensor  # uint8 [N, G, 1], with many
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, num_rows: int) -> None:
        super().__init__()
        weights = quantise_int4(linear.weight.detach())
        levels_NK, ratio_NG = (weights.values_NK + 8).to(torch.uint8), weights.ratio_NG
        self.has_few_rows = num_rows <= FEW_ROWS and linear.out_features % _KERNEL_WIDTH == 0
        self.dtype = product_dtype(self.has_few_rows)
        self.register_buffer("scale", weights.scale_N)
        if self.has_few_rows:
            self.register_buffer("packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels_NK.int(), 1))
            ratio_offset_GN2 = torch.stack([ratio_NG, torch.zeros_like(ratio_NG)], dim=-1).transpose(0, 1)
            self.register_buffer("ratio_offset", ratio_offset_GN2.to(self.dtype).contiguous())
        else:
            first, second = levels_NK.unflatten(1, (-1, 2, GROUP_SIZE // 2)).unbind(2)
            self.register_buffer("packed", (first | (second << 4)).contiguous())
            self.register_buffer("ratio", ratio_NG[..., None].contiguous())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        if self.has_few_rows:
            y_RN = torch.ops.aten._weight_int4pack_mm_for_cpu(
                _few_rows(x, self.dtype), self.packed, GROUP_SIZE, self.ratio_offset
            )
        else:
            first, second = _rows(x, self.dtype).unflatten(1, (-1, 2, GROUP_SIZE // 2)).unbind(2)
            y_RN = F.linear(first.flatten(1), self._unpack(self.packed & 15))
            y_RN = y_RN + F.linear(second.flatten(1), self._unpack(self.packed >> 4))
        return _finish(y_RN * self.scale, x, self.bias)

    def _unpack(self, levels: Tensor) -> Tensor:
        """Return half of the weights without their scales: [N, K / 2] from levels [N, G, GROUP_SIZE / 2]."""
        return ((levels.to(self.dtype) - 8) * self.ratio.to(self.dtype)).flatten(1)


class Int8Embedding(nn.Module):
    """Look up rows of a table with int8 entries and one scale per row."""

    weight: Tensor  # int8 [V, D]
    scale: Tensor  # float32 [V]

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        weights = quantise_int8(embedding.weight.detach())
        self.register_buffer("weight", weights.values_NK)
        self.register_buffer("scale", weights.scale_N)
        self.dtype = embedding.weight.dtype

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows [..., D] of ids [...]."""
        scale = F.embedding(ids, self.scale[:, None])
        return F.embedding(ids, self.weight).to(self.dtype) * scale.to(self.dtype)


def replace_linears(candidate: Candidate, make: Replace) -> tuple[nn.Module, int, list[str]]:
    """A copy of the candidate's module whose linear layers are what `make` gives for (layer, most rows it is given).

    Layers that the candidate keeps, and those for which `make` gives None, stay. Returns the module, how many layers
    were replaced, and the names of those that stayed because of `make`.
    """
    module = quantisable.with_linears(candidate.copy_module())
    if not any(isinstance(m, nn.MultiheadAttention | nn.TransformerEncoderLayer) for m in module.modules()):
        num_replaced, left = _replace_in(module, candidate, make)
        if _runs(module, candidate):
            return module, num_replaced, left
    # Some models use their layers' weights without calling the layers; in a traced one every product is a layer.
    module = quantisable.with_linears(candidate.copy_module())
    module = Traced(trace(module, candidate.examined))
    num_replaced, left = _replace_in(module, candidate, make)
    return module, num_replaced, left


def _replace_in(module: nn.Module, candidate: Candidate, make: Replace) -> tuple[int, list[str]]:
    rows = count_rows(module, candidate)
    replaced: dict[nn.Module, nn.Module] = {}
    left = []
    for name, layer in list(quantisable.find_linears(module)):
        if candidate.keeps(name) or name not in rows:
            continue
        made = make(layer, rows[name])
        if made is None:
            left.append(name)
        else:
            replaced[layer] = made
    quantisable.swap(module, replaced)
    return len(replaced), left


def _runs(module: nn.Module, candidate: Candidate) -> bool:
    try:
        with torch.no_grad():
            module(*candidate.examined.flat_inputs[0])
    except (AttributeError, RuntimeError, TypeError, WhetError):  # of a weight that is not there, or not what it was
        return False
    return True


def count_rows(module: nn.Module, candidate: Candidate) -> dict[str, int]:
    """Return the most rows that inputs and calibration batches give each linear layer that is called, by name."""
    rows: dict[str, int] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def see(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            rows[name] = max(rows.get(name, 0), args[0].numel() // args[0].shape[-1])

        return see

    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in quantisable.find_linears(module)]
    try:
        with torch.no_grad():
            for batch in _distinct(candidate):
                module(*batch)
    finally:
        for handle in handles:
            handle.remove()
    return rows


def _distinct(candidate: Candidate) -> Iterator[tuple[Tensor, ...]]:
    """Yield one batch for each set of shapes."""
    seen = set()
    for batch in [*candidate.examined.flat_inputs, *candidate.examined.flat_calibration]:
        shapes = tuple(x.shape for x in batch)
        if shapes not in seen:
            seen.add(shapes)
            yield batch


def product_dtype(has_few_rows: bool) -> torch.dtype:
    """Return the type to multiply in: bfloat16 for torch's integer kernels and on chips that have it, else float32."""
    return torch.bfloat16 if has_few_rows or describe().computes_bfloat16() else torch.float32


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Reshape and cast [..., K] to [R, K]."""
    return x.reshape(-1, x.shape[-1]).to(dtype)


def _few_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy [..., K] to [R, K] in contiguous memory, as torch's kernels need it.

    It always copies. A traced graph would drop contiguous() where the strides that torch predicts are contiguous and
    the real ones are not, as after a bfloat16 convolution.
    """
    return _rows(x, dtype).clone(memory_format=torch.contiguous_format)


def _finish(y_RN: Tensor, x: Tensor, bias_N: Tensor | None) -> Tensor:
    """Restore the shape and dtype of the input, and add the bias in that dtype."""
    y = y_RN.to(x.dtype).reshape(*x.shape[:-1], -1)
    return y if bias_N is None else y + bias_N.to(x.dtype)
