"""Generate texts of tokens that ask a model for what it has read: pairs, a number, a sequence. Pure, from a seed.

Four tasks. Each makes `Examples`: rows of tokens, and labels at the places where an answer is due. A label is the token
that the model should name after it has read the token at that place.

- `mqar`: key-value pairs, then each key once more, at gaps that follow a power law (Arora et al., 2023,
  arXiv:2312.04927, "Zoology"; with power_a 0.01 and without random tokens between the queries).
- `recall`: key-value pairs in the first segment, each key once more in a later segment, at a distance that is drawn.
- `passkey`: a number of four digits at a depth of a long text; the text's end asks for it (Mohtashami and Jaggi, 2023,
  arXiv:2305.16300).
- `copy`: a sequence of distinct tokens in the first segment, and again in the last one.

An answer stands nowhere but where it is told, and, in `passkey` and `copy`, behind the place where it was due.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NO_LABEL = -100  # what F.cross_entropy ignores

# Tokens of `recall`, `passkey` and `copy`; `mqar` has zoology's.
VOCAB_SIZE = 256
TELL, ASK = 1, 2  # "the number is", "what was the number"
DIGITS = range(4, 14)
FILLER = range(16, 64)
KEYS = range(64, 128)
VALUES = range(128, 256)
PASSKEY_DIGITS = 4


@dataclass(frozen=True)
class Examples:
    """Hold rows of tokens with the answers that are due.

    Attributes:
        tokens_BT: The token ids, int64.
        labels_BT: The token that should be named at each place, int64; `NO_LABEL` where none is due.
        distances_BT: How far back a label's answer was told: in tokens from the label to the answer for `mqar`, in
            segments for the other tasks; -1 where no label is due. int64.
    """

    tokens_BT: np.ndarray
    labels_BT: np.ndarray
    distances_BT: np.ndarray

    def rows(self, begin: int, end: int) -> "Examples":
        """Return the rows from `begin` to before `end`."""
        return Examples(self.tokens_BT[begin:end], self.labels_BT[begin:end], self.distances_BT[begin:end])


def gap_probabilities(num_gaps: int, power_a: float) -> np.ndarray:
    """Return the probabilities of the gaps 0, 1, ...: proportional to power_a * (gap + 1) ** (power_a - 1)."""
    weights: np.ndarray = power_a * np.arange(1, num_gaps + 1, dtype=float) ** (power_a - 1)
    return weights / weights.sum()


def mqar(
    num_examples: int, length: int, num_pairs: int, *, seed: int, vocab_size: int = 512, power_a: float = 0.01
) -> Examples:
    """Generate zoology's multi-query associative recall.

    A row begins with its pairs: keys from the lower half of the vocabulary, values from the upper half, all distinct.
    The rest is zeros, but for each key once, two places apart at the least. The gap between the pairs and a query is
    drawn from a power law, without replacement.

    Args:
        num_examples: The rows.
        length: The tokens of a row.
        num_pairs: The pairs of a row.
        seed: Decides everything that is drawn.
        vocab_size: The ids; 0 is the token between queries.
        power_a: The exponent of the power law, plus one.

    Raises:
        ValueError: The pairs and their queries do not fit into the row, or the vocabulary has too few keys.
    """
    context, half = 2 * num_pairs, vocab_size // 2
    num_gaps = (length - context) // 2
    if num_pairs > num_gaps:
        raise ValueError(f"{num_pairs} pairs with their queries need {2 * context} tokens; the row has {length}")
    if num_pairs >= half:
        raise ValueError(f"{num_pairs} pairs need as many keys; a vocabulary of {vocab_size} has {half - 1}")
    draw = np.random.default_rng(seed)
    keys_BN = _distinct(draw, num_examples, num_pairs, range(1, half))
    values_BN = _distinct(draw, num_examples, num_pairs, range(half, vocab_size))
    # The places of the smallest of exponential times with these rates are draws without replacement, in their order.
    times = draw.exponential(size=(num_examples, num_gaps)) / gap_probabilities(num_gaps, power_a)
    asked_BN = context + 2 * np.argsort(times, axis=1)[:, :num_pairs]
    tokens_BT = np.zeros((num_examples, length), np.int64)
    tokens_BT[:, 0:context:2], tokens_BT[:, 1:context:2] = keys_BN, values_BN
    told_N = np.arange(1, context, 2)
    return _asked(tokens_BT, asked_BN, keys_BN, values_BN, asked_BN - told_N)


def recall(
    num_examples: int, segment: int, num_pairs: int, distances: Sequence[int], *, seed: int, num_segments: int = 0
) -> Examples:
    """Generate pairs in the first segment, and each key once more in a segment that is a drawn distance behind it.

    All else is filler. Keys and values of a row are distinct, and their order is drawn, so that a later segment says
    nothing about the values: all of `VALUES` are equally likely.

    Args:
        num_examples: The rows.
        segment: The tokens of a segment.
        num_pairs: The pairs of a row.
        distances: Segments from the pairs to a query, at least 1; each query's is drawn from them, all equally likely.
        seed: Decides everything that is drawn.
        num_segments: The segments of a row; as many as the longest distance needs, if not given.

    Raises:
        ValueError: The pairs do not fit into a segment, a distance is below 1, or the row is too short for it.
    """
    if not 0 < num_pairs <= min(segment // 2, len(KEYS)):
        raise ValueError(f"a segment of {segment} tokens holds 1 to {min(segment // 2, len(KEYS))} pairs")
    num_segments = num_segments or max(distances) + 1
    if min(distances) < 1 or max(distances) >= num_segments:
        raise ValueError(f"distances lie between 1 and {num_segments - 1} segments")
    draw = np.random.default_rng(seed)
    keys_BN = _distinct(draw, num_examples, num_pairs, KEYS)
    values_BN = _distinct(draw, num_examples, num_pairs, VALUES)
    tokens_BT = draw.integers(FILLER.start, FILLER.stop, (num_examples, num_segments * segment))
    tokens_BT[:, 0 : 2 * num_pairs : 2], tokens_BT[:, 1 : 2 * num_pairs : 2] = keys_BN, values_BN
    # One place in a segment a key: two queries of one segment never take the same place.
    places_BN = _distinct(draw, num_examples, num_pairs, range(segment))
    distances_BN = draw.choice(np.asarray(distances), (num_examples, num_pairs))
    return _asked(tokens_BT, distances_BN * segment + places_BN, keys_BN, values_BN, distances_BN)


def passkey(num_examples: int, segment: int, num_segments: int, depths: Sequence[float], *, seed: int) -> Examples:
    """Generate filler with a number of four digits in it; the last tokens ask for it and spell it.

    Args:
        num_examples: The rows.
        segment: The tokens of a segment.
        num_segments: The segments of a row.
        depths: Where the number may stand, from 0 (at the start) to 1 (before the question); each row's is drawn from
            them, all equally likely.
        seed: Decides everything that is drawn.

    Raises:
        ValueError: The row is too short, or a depth is not between 0 and 1.
    """
    length, told = segment * num_segments, PASSKEY_DIGITS + 1
    space = length - 2 * told
    if space < 0:
        raise ValueError(f"a number and its question take {2 * told} tokens; the row has {length}")
    if not all(0 <= depth <= 1 for depth in depths):
        raise ValueError("depths lie between 0 and 1")
    draw = np.random.default_rng(seed)
    digits_BN = draw.integers(DIGITS.start, DIGITS.stop, (num_examples, PASSKEY_DIGITS))
    tokens_BT = draw.integers(FILLER.start, FILLER.stop, (num_examples, length))
    begins_B = np.rint(draw.choice(np.asarray(depths, float), num_examples) * space).astype(np.int64)
    rows = np.arange(num_examples)[:, None]
    places_BN = begins_B[:, None] + 1 + np.arange(PASSKEY_DIGITS)
    tokens_BT[rows[:, 0], begins_B] = TELL
    tokens_BT[rows, places_BN] = digits_BN
    asked_N = length - told + np.arange(PASSKEY_DIGITS)
    tokens_BT[:, length - told] = ASK
    tokens_BT[:, length - told + 1 :] = digits_BN
    labels_BT, distances_BT = (np.full(tokens_BT.shape, none, np.int64) for none in (NO_LABEL, -1))
    labels_BT[:, asked_N] = digits_BN
    distances_BT[:, asked_N] = asked_N // segment - places_BN // segment
    return Examples(tokens_BT, labels_BT, distances_BT)


def copy(num_examples: int, segment: int, num_segments: int, num_copied: int, *, seed: int) -> Examples:
    """Generate a sequence of distinct tokens in the first segment, filler, and the sequence again in the last segment.

    Args:
        num_examples: The rows.
        segment: The tokens of a segment.
        num_segments: The segments of a row, at least 2.
        num_copied: The tokens of the sequence; with a mark before it, it fits into a segment.
        seed: Decides everything that is drawn.

    Raises:
        ValueError: The sequence does not fit into a segment, or there is one segment alone.
    """
    if not 0 < num_copied < segment or num_segments < 2:
        raise ValueError(f"copies take two segments and 1 to {segment - 1} tokens of each")
    draw = np.random.default_rng(seed)
    copied_BN = _distinct(draw, num_examples, num_copied, VALUES)
    length = segment * num_segments
    tokens_BT = draw.integers(FILLER.start, FILLER.stop, (num_examples, length))
    tokens_BT[:, 0], tokens_BT[:, 1 : 1 + num_copied] = TELL, copied_BN
    begin = length - num_copied - 1
    tokens_BT[:, begin], tokens_BT[:, begin + 1 :] = ASK, copied_BN
    labels_BT, distances_BT = (np.full(tokens_BT.shape, none, np.int64) for none in (NO_LABEL, -1))
    labels_BT[:, begin:-1] = copied_BN
    distances_BT[:, begin:-1] = num_segments - 1
    return Examples(tokens_BT, labels_BT, distances_BT)


def _distinct(draw: np.random.Generator, num_rows: int, num: int, tokens: range) -> np.ndarray:
    """Draw `num` tokens a row without replacement, [rows, num]."""
    order = np.argsort(draw.random((num_rows, len(tokens))), axis=1)[:, :num]
    return order + tokens.start


def _asked(
    tokens_BT: np.ndarray, asked_BN: np.ndarray, keys_BN: np.ndarray, values_BN: np.ndarray, distances_BN: np.ndarray
) -> Examples:
    """Return the examples in which keys are asked for at the places `asked_BN`."""
    rows = np.arange(len(tokens_BT))[:, None]
    labels_BT, distances_BT = (np.full(tokens_BT.shape, none, np.int64) for none in (NO_LABEL, -1))
    tokens_BT[rows, asked_BN] = keys_BN
    labels_BT[rows, asked_BN] = values_BN
    distances_BT[rows, asked_BN] = distances_BN
    return Examples(tokens_BT, labels_BT, distances_BT)
