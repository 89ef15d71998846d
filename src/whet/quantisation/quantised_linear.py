"""Linear layers and embeddings that hold their weights in 8 or 4 bits and compute in floating point.

Plain modules with integer buffers: torch.export, compilers and files need to know nothing about them.

Few rows (a token at a time, batch 1): torch's own kernels read the integers and multiply. Many rows: the weights are
unpacked at each call and the product is the library's, which torch's kernels would be far slower than.

Shape suffixes: R rows, K inputs, N outputs, G groups of inputs, V vocabulary, D width.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.machine import describe
from whet.quantisation import quantisable
from whet.rewriting.graph import Traced, trace
from whet.technique import Candidate

# Measured on a Xeon with AVX-512 and AMX, one thread, 2048 x 2048, in ms, torch's int8 kernel against unpacking:
# 4 rows 0.39 : 1.3, 16 rows 2.4 : 2.6, 128 rows 12.7 : 2.0.
FEW_ROWS = 8

# torch's int8 kernel reads beyond the end of rows that are no multiple of this, and may end the process (torch 2.13);
# its 4-bit kernel refuses numbers of outputs that are none.
_KERNEL_WIDTH = 16

Replace = Callable[[nn.Linear, int], nn.Module | None]


class Int8Linear(nn.Module):
    """x @ weight.T + bias with int8 weights, one scale per output."""

    weight: Tensor  # int8 [N, K]
    scale: Tensor  # bfloat16 [N]
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, num_rows: int) -> None:
        super().__init__()
        weight_NK, scale_N = quantise_rows(linear.weight.detach())
        self.register_buffer("weight", weight_NK)
        self.register_buffer("scale", scale_N)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())
        self.has_few_rows = num_rows <= FEW_ROWS and linear.in_features % _KERNEL_WIDTH == 0
        self.dtype = product_dtype(self.has_few_rows)

    def forward(self, x: Tensor) -> Tensor:
        if self.has_few_rows:
            y_RN = torch.ops.aten._weight_int8pack_mm(_few_rows(x, self.dtype), self.weight, self.scale)
        else:
            y_RN = F.linear(_rows(x, self.dtype), self.weight.to(self.dtype)) * self.scale
        return _finish(y_RN, x, self.bias)


class Int4Linear(nn.Module):
    """x @ weight.T + bias with 4-bit weights, a scale and an offset per output and group of inputs.

    Few rows: the weights lie as torch's kernel for this chip wants them, and only for it (`packed_for`). Many rows: a
    byte holds a column of a group's first half (low bits) and one of its second half (high bits).
    """

    packed: Tensor  # uint8, N * K / 2 bytes
    scale_offset: Tensor  # [G, N, 2], with few rows
    scale: Tensor  # [N, G, 1], with many
    offset: Tensor  # the same
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, num_rows: int, group_size: int) -> None:
        super().__init__()
        levels_NK, scale_NG, offset_NG = quantise_groups(linear.weight.detach(), group_size)
        self.group_size = group_size
        self.has_few_rows = num_rows <= FEW_ROWS and linear.out_features % _KERNEL_WIDTH == 0
        self.dtype = product_dtype(self.has_few_rows)
        if self.has_few_rows:
            self.register_buffer("packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels_NK.int(), 1))
            scale_offset_GN2 = torch.stack([scale_NG, offset_NG], dim=-1).transpose(0, 1).contiguous()
            self.register_buffer("scale_offset", scale_offset_GN2.to(self.dtype))
        else:
            first, second = levels_NK.unflatten(1, (-1, 2, group_size // 2)).unbind(2)
            self.register_buffer("packed", (first | (second << 4)).contiguous())
            self.register_buffer("scale", scale_NG.to(self.dtype)[..., None])
            self.register_buffer("offset", offset_NG.to(self.dtype)[..., None])
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        if self.has_few_rows:
            y_RN = torch.ops.aten._weight_int4pack_mm_for_cpu(
                _few_rows(x, self.dtype), self.packed, self.group_size, self.scale_offset
            )
        else:
            first, second = _rows(x, self.dtype).unflatten(1, (-1, 2, self.group_size // 2)).unbind(2)
            y_RN = F.linear(first.flatten(1), self._unpack(self.packed & 15))
            y_RN = y_RN + F.linear(second.flatten(1), self._unpack(self.packed >> 4))
        return _finish(y_RN, x, self.bias)

    def _unpack(self, levels: Tensor) -> Tensor:
        """Half of the weights: levels of [N, G, group_size / 2] -> values of [N, K / 2]."""
        return ((levels.to(self.dtype) - 8) * self.scale + self.offset).flatten(1)


class Int8Embedding(nn.Module):
    """Rows of a table with int8 entries, one scale per row."""

    weight: Tensor  # int8 [V, D]
    scale: Tensor  # bfloat16 [V]

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        weight_VD, scale_V = quantise_rows(embedding.weight.detach())
        self.register_buffer("weight", weight_VD)
        self.register_buffer("scale", scale_V)
        self.dtype = embedding.weight.dtype

    def forward(self, ids: Tensor) -> Tensor:
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
    module = Traced(trace(module, candidate.subject))
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
            module(*candidate.subject.flat_inputs[0])
    except (AttributeError, RuntimeError, TypeError):  # of a weight that is not there, or not what it was
        return False
    return True


def count_rows(module: nn.Module, candidate: Candidate) -> dict[str, int]:
    """The most rows that inputs and calibration batches give each linear layer; layers never called are absent."""
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
    """One batch of each set of shapes."""
    seen = set()
    for batch in [*candidate.subject.flat_inputs, *candidate.subject.flat_calibration]:
        shapes = tuple(x.shape for x in batch)
        if shapes not in seen:
            seen.add(shapes)
            yield batch


def product_dtype(has_few_rows: bool) -> torch.dtype:
    """torch's integer kernels are written for bfloat16; other products are fast in it only where the chip has it."""
    return torch.bfloat16 if has_few_rows or describe().computes_bfloat16() else torch.float32


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 levels, scale in bfloat16 per row): weight is about levels * scale[:, None]."""
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
    levels = (weight / scale.float()[:, None]).round().clamp(-128, 127).to(torch.int8)
    return levels, scale


def quantise_groups(weight_NK: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(levels 0..15 as uint8 [N, K], scale [N, G], offset [N, G]): weight is about (level - 8) * scale + offset.

    Of a few ranges, from all of a group's values to three quarters of it, the one with the least squared error.
    """
    weight_NGK = weight_NK.unflatten(1, (-1, group_size))
    low, high = weight_NGK.amin(dim=-1), weight_NGK.amax(dim=-1)
    best: tuple[Tensor, ...] | None = None
    for share in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75):
        # rounded first, as they are stored, so that the levels make up for it
        scale = ((high - low) * share / 15).clamp(min=1e-8).to(torch.bfloat16).float()
        offset = ((high + low) / 2 + scale / 2).to(torch.bfloat16).float()
        levels = ((weight_NGK - offset[..., None]) / scale[..., None] + 8).round().clamp(0, 15)
        error = ((levels - 8) * scale[..., None] + offset[..., None] - weight_NGK).square().sum(dim=-1)
        if best is None:
            best = (error, levels, scale, offset)
        else:
            better = error < best[0]
            found = (error, levels, scale, offset)
            best = tuple(
                torch.where(better[..., None] if new.dim() == 3 else better, new, old)
                for new, old in zip(found, best, strict=True)
            )
    assert best is not None
    _, levels, scale, offset = best
    return levels.to(torch.uint8).flatten(1), scale, offset


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., K] -> [R, K]."""
    return x.reshape(-1, x.shape[-1]).to(dtype)


def _few_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same in order, as torch's kernels want it.

    A copy in any case: contiguous() would be left out of a traced graph where the strides that torch predicts are in
    order and the real ones are not, as after a bfloat16 convolution.
    """
    return _rows(x, dtype).clone(memory_format=torch.contiguous_format)


def _finish(y_RN: Tensor, x: Tensor, bias_N: Tensor | None) -> Tensor:
    """Back to the shape and dtype of the input, with the bias added in that dtype."""
    y = y_RN.to(x.dtype).reshape(*x.shape[:-1], -1)
    return y if bias_N is None else y + bias_N.to(x.dtype)
