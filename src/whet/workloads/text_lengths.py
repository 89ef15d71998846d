"""Give example texts random lengths, with masks and padding as the model's tokenizer would write them.

Encoders are served with texts of many lengths in one batch. int8 ranges that were found on full texts alone do not hold
for short ones, and a technique that mistakes the mask shows no error on them.
"""

import math
from pathlib import Path

import torch
from torch import Tensor

from whet.core.tokenizer_files.reading import CONFIG
from whet.errors import TargetError
from whet.files import read_object

SHORTEST = 3  # tokens: a text of one token has one that begins and one that ends it
MASK, IDS, SEGMENTS = "attention_mask", "input_ids", "token_type_ids"


def padding_side(directory: Path) -> str:
    """Return the side on which the directory's tokenizer pads: "left" or "right".

    Raises:
        TargetError: tokenizer_config.json is damaged, or names another side.
    """
    side = read_object(directory / CONFIG, required=False).get("padding_side") or "right"
    if side not in ("left", "right"):
        raise TargetError(f"{directory / CONFIG}: padding_side must be left or right, not {side!r}")
    return str(side)


def with_lengths(
    batch: dict[str, Tensor], generator: torch.Generator, *, side: str, pad_id: int, first: int = 0
) -> dict[str, Tensor]:
    """Return a batch of full texts whose texts from `first` on are cut to random lengths and padded.

    The logarithm of a length is uniform, so short texts are as frequent as long ones. A batch
    without a mask is returned as it is. The side of the padding is "left" or "right".
    """
    if MASK not in batch:
        return batch
    rows, full = batch[MASK].shape
    least = min(SHORTEST, full)
    drawn = torch.rand(rows, 1, generator=generator)
    lengths = (least * (drawn * math.log((full + 1) / least)).exp()).long().clamp_max(full)
    lengths[:first] = full
    places = torch.arange(full)
    if side == "left":
        places = places - (full - lengths)
    is_text = (places >= 0) & (places < lengths)
    found = {**batch, MASK: is_text.to(batch[MASK].dtype), IDS: batch[IDS].where(is_text, pad_id)}
    if SEGMENTS in batch:
        found[SEGMENTS] = ((places >= lengths // 2) & is_text).to(batch[SEGMENTS].dtype)
    return found
