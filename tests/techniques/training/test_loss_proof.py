"""The proof of the held-out loss: its error rates by simulation, and its rules."""

import math

import numpy as np
import pytest

from whet.techniques.proof.loss_proof import LOOKS, MOST, LossPair, LossProof, is_over, judge

ALLOWED = 0.0025


def pair(drop: float, middle: float | None = None, seed: int = 0) -> LossPair:
    """Two runs whose score at the end is worse by a part of the original's."""
    middle = drop if middle is None else middle
    old = 3.0 + 0.01 * seed
    return LossPair(seed=seed, old=old, new=old * (1 + drop), old_middle=4.0, new_middle=4.0 * (1 + middle), begin=7.0)


def sequence(drop: float, spread: float, generator: np.random.Generator, growth: float = 0.0) -> LossProof:
    """Look after each pair, as the search does."""
    pairs: list[LossPair] = []
    while True:
        noise = generator.normal(0, spread, 2)
        pairs.append(pair(drop + noise[0], drop - growth + noise[1], seed=len(pairs)))
        proof = judge(pairs, allowed=ALLOWED)
        if is_over(proof):
            return proof


@pytest.mark.parametrize("spread", [1e-5, 3e-4, 1e-3])
def test_a_drop_as_large_as_allowed_passes_in_five_percent_at_most(spread: float) -> None:
    generator = np.random.default_rng(0)
    passed = sum(sequence(ALLOWED, spread, generator).is_same is True for _ in range(800))
    assert passed <= 0.05 * 800 + 3 * math.sqrt(800 * 0.05 * 0.95)


def test_equal_trainings_pass_and_much_worse_ones_fail() -> None:
    generator = np.random.default_rng(1)
    assert sum(sequence(0.0, 1e-4, generator).is_same is True for _ in range(200)) >= 195
    assert sum(sequence(0.0087, 1e-3, generator).is_same is False for _ in range(200)) >= 190


def test_a_gap_that_grows_is_no_equal_training() -> None:
    """0.2 % at the end and none in the middle: another half as long would lead beyond what is allowed."""
    generator = np.random.default_rng(2)
    proof = sequence(0.0020, 1e-5, generator, growth=0.0020)
    assert proof.most < ALLOWED < proof.grown
    assert proof.is_same is None
    assert len(proof.pairs) == MOST


def test_a_better_loss_passes_whatever_is_higher() -> None:
    pairs = [pair(-0.01 - i * 1e-5, seed=i) for i in range(3)]
    assert judge(pairs, allowed=ALLOWED).is_same is True
    falling = [one.model_copy(update={"begin": 1.0}) for one in pairs]
    assert judge(falling, allowed=ALLOWED, higher_is_better=True).is_same is False


def test_a_run_that_diverges_ends_the_proof() -> None:
    proof = judge([pair(math.inf)], allowed=ALLOWED)
    assert proof.is_same is False
    assert is_over(proof)
    assert LossProof.model_validate_json(proof.model_dump_json()) == proof


@pytest.mark.parametrize("field", ["old", "old_middle", "begin"])
@pytest.mark.parametrize(
    ("new", "said"),
    [(3.0, "; with the recipe it does not fail"), (math.nan, ", with and without the recipe")],
)
def test_where_the_original_diverges_the_recipe_is_not_blamed(field: str, new: float, said: str) -> None:
    broken = pair(0.0).model_copy(update={field: math.nan, "new": new})
    proof = judge([pair(0.0, seed=1), broken, pair(0.0, seed=2)], allowed=ALLOWED)
    assert proof.is_same is None
    assert is_over(proof)
    assert f"the original's own run with seed 0 fails: its score is nan{said}" in proof.words
    named = broken.model_copy(update={"old_failure": "the loss of step 12 is nan"})
    assert f"fails: the loss of step 12 is nan{said}" in judge([named], allowed=ALLOWED, change="the recipe").words


def test_a_run_that_diverges_and_recovers_is_no_equal_training() -> None:
    proof = judge([pair(0.0).model_copy(update={"new_failure": "the loss of step 9 is inf"})], allowed=ALLOWED)
    assert (proof.is_same, is_over(proof)) == (False, True)
    assert proof.words == "worse held-out loss: the loss of step 9 is inf (seed 0)"


def test_one_or_two_pairs_prove_nothing() -> None:
    for number in (1, 2):
        proof = judge([pair(0.0, seed=i) for i in range(number)], allowed=ALLOWED)
        assert proof.is_same is None
        assert not is_over(proof)
    assert min(LOOKS) == 3
    assert "open" in proof.words


def test_who_learns_nothing_proves_nothing() -> None:
    """Runs so short that the original hardly improves could not tell a recipe that updates nothing."""
    pairs = [pair(0.0, seed=i).model_copy(update={"begin": 3.01 + 0.01 * i}) for i in range(3)]
    proof = judge(pairs, allowed=ALLOWED)
    assert proof.is_same is None
    assert "too little to tell" in proof.words
    assert is_over(proof)


def test_copies_of_one_run_are_one_pair() -> None:
    pairs = [pair(0.0, seed=0) for _ in range(3)]
    proof = judge(pairs, allowed=ALLOWED)
    assert proof.is_same is None
    assert "every seed gave the same run" in proof.words


def test_only_the_looks_that_are_paid_for_decide() -> None:
    for number in range(1, MOST + 1):
        proof = judge([pair(0.0, seed=i) for i in range(number)], allowed=ALLOWED)
        assert (proof.is_same is True) == (number in LOOKS)
