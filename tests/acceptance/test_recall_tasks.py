"""The generators of benchmarks/recall.py, held against the definitions of their tasks."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from benchmarks.recall_tasks import (
    ASK,
    DIGITS,
    FILLER,
    KEYS,
    NO_LABEL,
    TELL,
    VALUES,
    VOCAB_SIZE,
    Examples,
    copy,
    gap_probabilities,
    mqar,
    passkey,
    recall,
)
from hypothesis import given
from hypothesis import strategies as st

seeds = st.integers(0, 2**32 - 1)


def asked(examples: Examples) -> list[tuple[int, int]]:
    return [(int(row), int(place)) for row, place in np.argwhere(examples.labels_BT != NO_LABEL)]


def same(first: Examples, second: Examples) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(vars(first).values(), vars(second).values(), strict=True))


@given(seeds, st.integers(1, 8), st.integers(0, 40))
def test_mqar_asks_for_each_key_once_after_it_was_told_once(seed: int, num_pairs: int, more: int) -> None:
    length = 4 * num_pairs + more
    examples = mqar(3, length, num_pairs, seed=seed, vocab_size=64)
    assert examples.tokens_BT.shape == examples.labels_BT.shape == (3, length)
    assert len(asked(examples)) == 3 * num_pairs
    for row, place in asked(examples):
        tokens, label = examples.tokens_BT[row], examples.labels_BT[row, place]
        told = np.flatnonzero(tokens[:place] == tokens[place])
        assert 0 < tokens[place] < 32 <= label < 64
        assert place >= 2 * num_pairs and (place - 2 * num_pairs) % 2 == 0
        assert len(told) == 1 and tokens[told[0] + 1] == label
        assert np.count_nonzero(tokens == tokens[place]) == 2  # told, and asked
        assert np.flatnonzero(tokens == label).tolist() == [told[0] + 1]  # the answer stands nowhere else
        assert examples.distances_BT[row, place] == place - told[0] - 1
    rest = slice(2 * num_pairs, None)
    assert not examples.tokens_BT[:, rest][examples.labels_BT[:, rest] == NO_LABEL].any()


@pytest.mark.parametrize("power_a", [0.01, 1.0])
def test_the_first_gap_of_mqar_follows_the_power_law(power_a: float) -> None:
    """The later ones are drawn from what is left; numpy's own draws without replacement say how."""
    num, length, pairs = 5000, 40, 4
    examples = mqar(num, length, pairs, seed=5, vocab_size=64, power_a=power_a)
    num_gaps = (length - 2 * pairs) // 2
    expected = power_a * np.arange(1, num_gaps + 1) ** (power_a - 1.0)
    expected /= expected.sum()
    np.testing.assert_allclose(gap_probabilities(num_gaps, power_a), expected, rtol=1e-12)
    gaps_BN = np.stack([_gap(examples, pair) for pair in range(pairs)], 1)
    first = np.bincount(gaps_BN[:, 0], minlength=num_gaps)
    assert scipy.stats.chisquare(first, num * expected).pvalue > 0.01
    draw = np.random.default_rng(1)
    theirs = np.array([draw.choice(num_gaps, pairs, replace=False, p=expected) for _ in range(num)])
    for pair in range(1, pairs):
        both = [np.bincount(gaps[:, pair], minlength=num_gaps) for gaps in (gaps_BN, theirs)]
        assert scipy.stats.chi2_contingency(both).pvalue > 0.01


def _gap(examples: Examples, pair: int) -> np.ndarray:
    """Return the gaps between the pairs and the query for the key of one pair, counted in twos, [rows]."""
    keys_B = examples.tokens_BT[:, 2 * pair]
    context = np.flatnonzero(examples.tokens_BT[0] < 32)  # keys, queries, and zeros
    num_pairs = (examples.labels_BT[0] != NO_LABEL).sum()
    assert len(context) > num_pairs
    is_asked = (examples.tokens_BT == keys_B[:, None]) & (examples.labels_BT != NO_LABEL)
    gaps: np.ndarray = (is_asked.argmax(1) - 2 * num_pairs) // 2
    return gaps


def test_mqar_takes_keys_and_values_from_its_halves_equally_often() -> None:
    examples = mqar(4000, 32, 4, seed=3, vocab_size=32)
    for tokens, expected in (
        (examples.tokens_BT[:, 0:8:2], range(1, 16)),
        (examples.tokens_BT[:, 1:8:2], range(16, 32)),
    ):
        counts = np.bincount(tokens.ravel(), minlength=32)
        assert set(np.flatnonzero(counts)) == set(expected)
        assert scipy.stats.chisquare(counts[list(expected)]).pvalue > 0.01


@given(seeds, st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_recall_asks_for_each_pair_at_a_distance_that_was_given(seed: int, pairs: int, distances: list[int]) -> None:
    segment = 12
    examples = recall(4, segment, pairs, distances, seed=seed)
    assert examples.tokens_BT.shape == (4, segment * (max(distances) + 1))
    assert len(asked(examples)) == 4 * pairs
    for row, place in asked(examples):
        tokens, label = examples.tokens_BT[row], examples.labels_BT[row, place]
        told = np.flatnonzero(tokens[:place] == tokens[place])
        assert tokens[place] in KEYS and label in VALUES
        assert len(told) == 1 and told[0] < segment and tokens[told[0] + 1] == label
        assert np.flatnonzero(tokens == label).tolist() == [told[0] + 1]
        assert examples.distances_BT[row, place] == place // segment in distances
    rest = examples.tokens_BT[:, 2 * pairs :][examples.labels_BT[:, 2 * pairs :] == NO_LABEL]
    assert np.isin(rest, FILLER).all()


def test_distances_and_values_of_recall_are_equally_likely() -> None:
    examples = recall(2000, 16, 4, [1, 3, 4], seed=2)
    labels = examples.labels_BT[examples.labels_BT != NO_LABEL]
    found = np.bincount(examples.distances_BT[examples.labels_BT != NO_LABEL], minlength=5)
    assert found[[0, 2]].sum() == 0
    assert scipy.stats.chisquare(found[[1, 3, 4]]).pvalue > 0.01
    assert scipy.stats.chisquare(np.bincount(labels - VALUES.start, minlength=len(VALUES))).pvalue > 0.01
    # Where a key was asked for says nothing about its value.
    late = labels[examples.distances_BT[examples.labels_BT != NO_LABEL] == 4]
    assert scipy.stats.chisquare(np.bincount((late - VALUES.start) // 16, minlength=8)).pvalue > 0.01


@given(seeds, st.integers(1, 5), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_a_passkey_stands_at_its_depth_and_is_asked_for_at_the_end(seed: int, segments: int, depth: float) -> None:
    segment = 16
    examples = passkey(3, segment, segments, [depth], seed=seed)
    length = segment * segments
    for tokens, labels, distances in zip(*vars(examples).values(), strict=True):
        (told,) = np.flatnonzero(tokens == TELL)
        (ask,) = np.flatnonzero(tokens == ASK)
        digits = tokens[told + 1 : told + 5]
        assert told == round(depth * (length - 10)) and ask == length - 5
        assert np.isin(digits, DIGITS).all()
        assert tokens[ask + 1 :].tolist() == digits.tolist() == labels[ask:-1].tolist()
        assert np.flatnonzero(labels != NO_LABEL).tolist() == list(range(ask, ask + 4))
        assert np.isin(np.delete(tokens, [*range(told, told + 5), *range(ask, length)]), FILLER).all()
        expected = [(ask + n) // segment - (told + 1 + n) // segment for n in range(4)]
        assert distances[ask:-1].tolist() == expected


def test_depths_and_digits_of_passkeys_are_equally_likely() -> None:
    examples = passkey(3000, 16, 4, [0.0, 0.5, 1.0], seed=4)
    begins = (examples.tokens_BT == TELL).argmax(1)
    assert scipy.stats.chisquare(np.unique(begins, return_counts=True)[1]).pvalue > 0.01
    digits = examples.labels_BT[examples.labels_BT != NO_LABEL].reshape(-1, 4) - DIGITS.start
    for column in digits.T:
        assert scipy.stats.chisquare(np.bincount(column, minlength=10)).pvalue > 0.01
    pairs = np.histogram2d(digits[:, 0], digits[:, 1], bins=10)[0]
    assert scipy.stats.chi2_contingency(pairs).pvalue > 0.01  # a digit says nothing about the next one


@given(seeds, st.integers(2, 5), st.integers(1, 15))
def test_copies_are_of_distinct_tokens_in_the_same_order(seed: int, segments: int, num_copied: int) -> None:
    examples = copy(3, 16, segments, num_copied, seed=seed)
    begin = 16 * segments - num_copied - 1
    for tokens, labels, distances in zip(*vars(examples).values(), strict=True):
        copied = tokens[1 : 1 + num_copied]
        assert tokens[0] == TELL and tokens[begin] == ASK
        assert len(set(copied.tolist())) == num_copied and np.isin(copied, VALUES).all()
        assert copied.tolist() == tokens[begin + 1 :].tolist() == labels[begin:-1].tolist()
        assert np.flatnonzero(labels != NO_LABEL).tolist() == list(range(begin, begin + num_copied))
        assert set(distances[begin:-1].tolist()) == {segments - 1}
        assert np.isin(tokens[1 + num_copied : begin], FILLER).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: mqar(5, 32, 4, seed=seed, vocab_size=64),
        lambda seed: recall(5, 16, 4, [1, 2], seed=seed),
        lambda seed: passkey(5, 16, 3, [0.0, 0.5], seed=seed),
        lambda seed: copy(5, 16, 3, 6, seed=seed),
    ],
    ids=["mqar", "recall", "passkey", "copy"],
)
def test_a_seed_decides_the_examples(make: Callable[[int], Examples]) -> None:
    first = make(1)
    assert same(first, make(1))
    assert not same(first, make(2))
    assert same(first.rows(1, 3), Examples(*(part[1:3] for part in vars(first).values())))
    assert first.tokens_BT.dtype == np.int64 and first.tokens_BT.min() >= 0 and first.tokens_BT.max() < VOCAB_SIZE


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="need 20 tokens"):
        mqar(1, 18, 5, seed=0)
    with pytest.raises(ValueError, match="has 3"):
        mqar(1, 64, 4, seed=0, vocab_size=8)
    with pytest.raises(ValueError, match="1 to 8 pairs"):
        recall(1, 16, 9, [1], seed=0)
    for distances in ([0, 1], [1, 4]):
        with pytest.raises(ValueError, match="between 1 and 3"):
            recall(1, 16, 2, distances, seed=0, num_segments=4)
    with pytest.raises(ValueError, match="take 10 tokens"):
        passkey(1, 8, 1, [0.0], seed=0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        passkey(1, 8, 2, [1.5], seed=0)
    with pytest.raises(ValueError, match="1 to 15"):
        copy(1, 16, 2, 16, seed=0)
    with pytest.raises(ValueError, match="two segments"):
        copy(1, 16, 1, 4, seed=0)
