"""Cut a text into the pieces that the layers read one after the other: whole spans side by side, or parts of a segment.

A span is what the bank writes at once: a segment, or several. While it trains, a piece is also what backward computes
again, and where gradients through the memories end.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from whet.models.memory_bank.config import LtmConfig


@dataclass(frozen=True)
class Piece:
    """Describe tokens that the layers read at once.

    Attributes:
        begin: The place of the first token in the sequence.
        end: The place after the last token.
        spans: The whole spans that the piece is; 0 for a part of one segment.
        in_span: The tokens of the span before the first one.
        cuts_gradients: Whether no gradient flows from here to earlier tokens.
    """

    begin: int
    end: int
    spans: int
    in_span: int
    ends_segment: bool
    ends_span: bool
    cuts_gradients: bool = False


def pieces(
    begin: int, count: int, config: LtmConfig, blocks: bool = False, *, one_by_one: bool = False
) -> Iterator[Piece]:
    """Yield the pieces of `count` tokens from the place `begin` of a sequence on.

    Args:
        blocks: Whether a piece is at most a block of segments that backward computes again.
        one_by_one: Whether a piece is at most one span.
    """
    segment, span, first, end = config.attention_block_size, config.span, begin, begin + count
    window = config.backpropagation_segments * segment
    most = spans_at_once(count, config, blocks, one_by_one)
    while begin < end:
        stop = min(end, (begin // window + 1) * window) if window else end
        cuts = window > 0 and begin % window == 0 and begin > first
        num = min(most, (stop - begin) // span) if begin % span == 0 else 0
        after = begin + (num * span or min(stop - begin, segment - begin % segment))
        yield Piece(begin, after, num, begin % span, after % segment == 0, after % span == 0, cuts)
        begin = after


def spans_at_once(count: int, config: LtmConfig, blocks: bool, one_by_one: bool) -> int:
    """Return the most spans of a piece. A block is checkpoint_segments, or the square root of their number."""
    if one_by_one:
        return 1
    if not blocks:
        return count
    segments = config.checkpoint_segments or round(math.sqrt(count / config.attention_block_size))
    return max(1, segments // config.memory_update_interval)
