"""Train pairs of runs until their losses tell whether a recipe trains as well as the original."""

from collections.abc import Callable

from whet.techniques.proof.loss_proof import LossPair, LossProof, is_over, judge


def prove_in_pairs(
    run_pair: Callable[[int], LossPair | None],
    *,
    allowed: float,
    score: str,
    higher_is_better: bool = False,
    change: str = "the recipe",
    report: Callable[[int], None] = lambda number: None,
) -> LossProof | None:
    """Train pairs until they tell, or until there is no time for another one; return None without a single pair.

    Args:
        run_pair: Trains a pair with a seed, from 1 on; None where there is no time for it.
        allowed: The drop that is allowed, as a fraction.
        score: What the runs score, in words.
        change: What the second run of each pair has and the first one has not, in words.
        report: Is told of the number of pairs so far.
    """
    pairs: list[LossPair] = []
    proof: LossProof | None = None
    while (proof is None or not is_over(proof)) and (pair := run_pair(len(pairs) + 1)) is not None:
        pairs.append(pair)
        proof = judge(pairs, allowed=allowed, higher_is_better=higher_is_better, score=score, change=change)
        report(len(pairs))
    return proof
