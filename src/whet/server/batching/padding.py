"""Pad samples of different lengths to one batch, and split a batch's outputs into those of the samples.

Shapes: S samples, R rows of the batch (R >= S if only some batch sizes are allowed), L padded length.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.core.signature import Outputs, argument_of, split
from whet.errors import InputsError, ModelError, type_name

Cut = bool | Collection[int | str]
"""Which outputs have the length dimension: all, none, or those with these places or names."""

Kind = tuple[Any, ...]
"""What samples must have in common to share a batch."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold the tensors of one sample, without a batch dimension, by place (0, 1, ...) or by name."""

    tensors: dict[int | str, Tensor]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def kind(self, length_dim: int | None) -> Kind:
        """Return places and names, types, devices, and all sizes except those along length_dim."""
        if length_dim is None and len(self.tensors) == 1:
            [(key, tensor)] = self.tensors.items()
            return str(key), tensor.dtype, tensor.device, tensor.shape
        kinds = []
        for key, tensor in self.tensors.items():
            sizes = tuple(None if dim == length_dim else size for dim, size in enumerate(tensor.shape))
            kinds.append((str(key), tensor.dtype, tensor.device, sizes))
        return tuple(sorted(kinds, key=lambda kind: kind[0]))

    def length(self, length_dim: int | None) -> int | None:
        """Return the size along length_dim of the first tensor that has this dimension, or None if none has it."""
        if length_dim is None:
            return None
        return next((t.shape[length_dim] for t in self.tensors.values() if t.dim() > length_dim), None)

    def __str__(self) -> str:
        return ", ".join(
            str(argument_of(None if isinstance(key, int) else key, tensor)) for key, tensor in self.tensors.items()
        )


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Hold the arguments of one call of a model.

    Attributes:
        kwargs: The tensors by name, with mask and lengths if they are wanted.
        lengths: The length of each of the S samples.
        padded: The length L to which samples were padded, or None if they have no length.
        num_elements: The elements of all inputs.
        num_padding: How many of these are padding.
    """

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    lengths: tuple[int | None, ...]
    padded: int | None
    num_elements: int
    num_padding: int


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Turn samples into a batch, and outputs of a batch into outputs of samples.

    Attributes:
        length_dim: The dimension of a sample in which samples may differ; None for none.
        value: The value of padding, for all tensors or by place or name.
        lengths: The allowed lengths in rising order; None for any.
        batch_sizes: The allowed batch sizes in rising order; None for any.
        mask: The keyword for the mask, bool [R, L], which is true for elements of a sample; None for no mask.
        lengths_name: The keyword for the lengths, int64 [R]; None for no lengths.
    """

    length_dim: int | None = 0
    value: float | Mapping[int | str, float] = 0
    lengths: tuple[int, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    mask: str | None = None
    lengths_name: str | None = None

    def batch(self, samples: Sequence[Sample]) -> PaddedBatch:
        """Stack samples of one kind. Each tensor is padded to the longest one of the batch."""
        num_rows = next_size(len(samples), self.batch_sizes)
        rows = [
            *samples,
            *[samples[-1]] * (num_rows - len(samples)),
        ]  # filled up with copies of the last sample, which are valid inputs
        stacked = {key: self._stack([row.tensors[key] for row in rows], key) for key in samples[0].tensors}
        args = tuple(tensor for key, tensor in stacked.items() if isinstance(key, int))
        kwargs = {key: tensor for key, tensor in stacked.items() if isinstance(key, str)}
        lengths = tuple(row.length(self.length_dim) for row in rows)
        padded = None if lengths[0] is None else next_size(max(n for n in lengths if n is not None), self.lengths)
        kwargs |= self._described(lengths, padded, next(iter(stacked.values())).device)
        num_real = sum(tensor.numel() for sample in samples for tensor in sample.tensors.values())
        num_elements = sum(tensor.numel() for tensor in stacked.values())
        return PaddedBatch(args, kwargs, lengths[: len(samples)], padded, num_elements, num_elements - num_real)

    def _stack(self, tensors: Sequence[Tensor], key: int | str) -> Tensor:
        dim = self.length_dim
        if dim is None or tensors[0].dim() <= dim:
            return torch.stack(list(tensors))
        longest = next_size(max(tensor.shape[dim] for tensor in tensors), self.lengths)
        if all(tensor.shape[dim] == longest for tensor in tensors):
            return torch.stack(list(tensors))
        shape = list(tensors[0].shape)
        shape[dim] = longest
        padded = tensors[0].new_full((len(tensors), *shape), self._value(key))
        for row, tensor in zip(padded, tensors, strict=True):
            row.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
        return padded

    def _described(self, lengths: Sequence[int | None], padded: int | None, device: torch.device) -> dict[str, Tensor]:
        if (self.mask is None and self.lengths_name is None) or padded is None:
            return {}
        known = torch.tensor(lengths, device=device)
        described = {}
        if self.mask is not None:
            described[self.mask] = torch.arange(padded, device=device) < known[:, None]
        if self.lengths_name is not None:
            described[self.lengths_name] = known
        return described

    def _value(self, key: int | str) -> float:
        return self.value.get(key, 0) if isinstance(self.value, Mapping) else self.value

    def split(self, output: Any, batch: PaddedBatch, cut: Cut) -> list[Any]:
        """Split the output of a batch into one output for each sample, in the same containers.

        The outputs are copies: they do not keep the batch in memory, and the model's next call does not change them.

        Raises:
            ModelError: A part of the output has no batch dimension, or no length dimension where `cut` needs it.
        """
        return [self._row(output, row, batch, cut, ()) for row in range(len(batch.lengths))]

    def _row(self, output: Any, row: int, batch: PaddedBatch, cut: Cut, place: tuple[int | str, ...]) -> Any:
        if isinstance(output, Tensor):
            is_cut = cut if isinstance(cut, bool) else bool(place) and place[0] in cut
            return self._tensor_row(output, row, batch, is_cut, place)
        if isinstance(output, Mapping):
            return Outputs((key, self._row(item, row, batch, cut, (*place, key))) for key, item in output.items())
        if isinstance(output, list | tuple):
            return tuple(self._row(item, row, batch, cut, (*place, i)) for i, item in enumerate(output))
        if output is None or isinstance(output, bool | int | float | str):
            return output
        raise ModelError(f"the model returns {type_name(output)}{_at(place)}, which cannot be split into samples")

    def _tensor_row(
        self, output: Tensor, row: int, batch: PaddedBatch, is_cut: bool, place: tuple[int | str, ...]
    ) -> Tensor:
        num_rows = next_size(len(batch.lengths), self.batch_sizes)
        if output.dim() == 0 or output.shape[0] != num_rows:
            raise ModelError(
                f"the model returns {list(output.shape)}{_at(place)} for {num_rows} samples: the first dimension of "
                "every output must be the batch"
            )
        length = batch.lengths[row]
        if not is_cut or length is None or self.length_dim is None:
            return output[row].clone()
        dim = self.length_dim + 1
        if output.dim() <= dim or output.shape[dim] != batch.padded:
            raise ModelError(
                f"the model returns {list(output.shape)}{_at(place)} for samples padded to {batch.padded}: dimension "
                f"{dim} is not their length; name the outputs that have the length dimension with cut="
            )
        return output[row].narrow(self.length_dim, 0, length).clone()


def read_sample(sample: Any) -> Sample:
    """Read a tensor, a tuple of tensors or a dict of tensors as a sample.

    Raises:
        InputsError: It is something else.
    """
    args, kwargs = split(sample)
    tensors: dict[int | str, Any] = {**dict(enumerate(args)), **dict(kwargs.items())}
    for key, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise InputsError(f"{key} of the sample is {type_name(tensor)}, not a tensor")
    if not tensors:
        raise InputsError("the sample holds no tensor: give at least one")
    return Sample(tensors)


def next_size(size: int, allowed: Sequence[int] | None) -> int:
    """Return the smallest allowed size of at least `size`. If there is none, or any is allowed, return `size`."""
    return next((n for n in allowed or () if n >= size), size)


def _at(place: Sequence[int | str]) -> str:
    return f" at {'.'.join(map(str, place))}" if place else ""
