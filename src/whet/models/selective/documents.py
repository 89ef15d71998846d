"""Lay the documents of packed rows out as rows of their own, so that each of them begins without a past.

A recurrent layer carries what it has read from token to token. Where several documents share a row, it must forget at
each border. Here the documents become rows, those of similar length together, filled up at their ends, which a causal
layer does not look at. The limit of the additional work is the ratio of the lengths in a group.

Shape suffixes: B rows, T tokens, R documents of a group, L tokens of the longest one, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_FILLED = 0.8  # the shortest document of a group has at least so many tokens, as a share of the longest


@dataclass(frozen=True, eq=False)
class DocumentRows:
    """Say where the documents of packed rows lie. Make it once for a batch; every layer uses it.

    Attributes:
        groups: For each group, the place of each token in the rows, which lie one after the other: int64 [R, L]. Behind
            the end of a document, its last token stands again.
        back: For each token of the rows, its place in the groups, which lie one after the other: int64 [B T].
    """

    groups: tuple[Tensor, ...]
    back: Tensor

    @classmethod
    def of(cls, documents_BT: Tensor) -> "DocumentRows":
        """Find the documents: neighbours with the same number belong together, as does padding."""
        begins_BT = torch.ones_like(documents_BT, dtype=torch.bool)
        begins_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
        starts = begins_BT.flatten().nonzero()[:, 0]
        lengths = torch.diff(starts, append=starts.new_tensor([documents_BT.numel()]))
        order = lengths.argsort(descending=True, stable=True)
        groups, back, num_before, first = [], order.new_empty(documents_BT.numel()), 0, 0
        sorted_lengths = lengths[order].tolist()
        while first < len(order):
            longest = sorted_lengths[first]
            last = first
            while last < len(order) and sorted_lengths[last] >= _MOST_FILLED * longest:
                last += 1
            chosen, offsets = order[first:last], torch.arange(longest, device=order.device)
            ends = (lengths[chosen] - 1)[:, None]
            places_RL = starts[chosen][:, None] + offsets.minimum(ends)
            is_token = offsets <= ends
            back[places_RL[is_token]] = num_before + is_token.flatten().nonzero()[:, 0]
            groups.append(places_RL)
            num_before += places_RL.numel()
            first = last
        return cls(tuple(groups), back)

    def each(self, layer: Callable[[Tensor], Tensor], x_BTD: Tensor) -> Tensor:
        """Apply a causal layer to each document by itself: [B, T, D] -> [B, T, D]."""
        flat = x_BTD.flatten(0, 1)
        parts = [layer(flat[places_RL]).flatten(0, 1) for places_RL in self.groups]
        y_BTD: Tensor = torch.cat(parts)[self.back].unflatten(0, x_BTD.shape[:2])
        return y_BTD
