"""Who is measured how often, which runs count, and what the claim says in the end."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from fakes import Fake, made, patience, timed

from whet.comparison.claim import Verdict
from whet.comparison.compare import Progress, TimeLimit, compare, compare_all
from whet.comparison.run import Run
from whet.comparison.schedules import ABBA, Rounds
from whet.comparison.stopping import Fixed, Sequential, UntilClear
from whet.measure.evidence import Losses
from whet.measure.load import Load
from whet.measure.quiet import QuietWait


def noisy(name: str, seconds: float, seed: int = 0, log: list[str] | None = None) -> Fake:
    draw = random.Random(seed)
    return made(name, lambda i: Run(seconds=seconds * (1 + draw.gauss(0, 0.003))), log)


def test_a_gain_is_proved_by_a_fixed_number_of_pairs() -> None:
    log: list[str] = []
    claim = compare(noisy("old", 2.0, 0, log), noisy("new", 1.0, 1, log), schedule=Rounds(), stop=Fixed())
    assert claim.verdict is Verdict.PASS
    assert claim.is_gain
    assert claim.ratio == pytest.approx(2.0, rel=0.01)
    assert claim.slowdown == pytest.approx(0.5, rel=0.01)
    assert claim.ci95 is not None
    assert claim.slowdown_ci95 == pytest.approx((1 / claim.ci95[1], 1 / claim.ci95[0]))
    assert claim.num_pairs == len(claim.old_s) == len(claim.new_s) == len(claim.pairs) == 8
    assert Counter(log) == {"old": 8, "new": 8}


def test_equal_variants_are_no_gain() -> None:
    claim = compare(noisy("old", 1.0, 0), noisy("new", 1.0, 1), schedule=Rounds(), stop=Fixed(lost_after=0))
    assert claim.verdict is not Verdict.PASS


def test_variants_share_the_original_and_the_loser_is_left_out() -> None:
    log: list[str] = []
    old, slow, fast = noisy("old", 1.0, 0, log), noisy("slow", 1.5, 1, log), noisy("fast", 0.5, 2, log)
    found = compare_all([(old, slow), (old, fast)], schedule=Rounds(), stop=Fixed())
    assert [claim.verdict for claim in found.claims] == [Verdict.FAIL, Verdict.PASS]
    assert Counter(log) == {"old": 8, "fast": 8, "slow": 3}
    assert len(found.runs["old"]) == 8


def test_the_order_in_a_round_is_random_and_repeatable() -> None:
    def order(seed: int) -> list[str]:
        log: list[str] = []
        old, a, b = (noisy(name, 1.0, i, log) for i, name in enumerate(("old", "a", "b")))
        compare_all([(old, a), (old, b)], schedule=Rounds(seed), stop=Fixed(lost_after=0))
        return log

    assert order(0) == order(0) != order(1)
    first = [order(seed)[0] for seed in range(30)]
    assert min(Counter(first).values()) > 2


def test_abba_alternates_who_comes_first() -> None:
    log: list[str] = []
    compare(timed("a", 1.0, log=log), timed("b", 1.0, log=log), schedule=ABBA(), stop=Fixed(4, 1, lost_after=0))
    assert "".join(log) == "abbaabba"


def test_a_side_that_fails_is_named_and_ends_its_claim_alone() -> None:
    old, fine = noisy("old", 1.0), noisy("fine", 0.5, 1)
    broken = made("broken", lambda i: Run(failure="no such operator"))
    found = compare_all([(old, broken), (old, fine)], schedule=Rounds(), stop=Fixed())
    bad, good = found.claims
    assert (bad.verdict, bad.failure, bad.failed) == (Verdict.INCONCLUSIVE, "no such operator", "broken")
    assert good.verdict is Verdict.PASS
    assert good.num_pairs == 8


@pytest.mark.parametrize("old_may_fail", [False, True])
def test_an_original_that_fails_once(old_may_fail: bool) -> None:
    old = made("old", lambda i: Run(failure="lost") if i == 2 else Run(seconds=2 + 0.001 * i))
    new = noisy("new", 1.0)
    found = compare_all([(old, new)], schedule=Rounds(), stop=Fixed(), old_may_fail=old_may_fail)
    (claim,) = found.claims
    if old_may_fail:
        assert (claim.verdict, claim.num_pairs, claim.failure) == (Verdict.PASS, 7, "")
    else:
        assert (claim.num_pairs, claim.failure, claim.failed) == (2, "lost", "old")


def test_after_a_failure_abba_leaves_the_other_side_out() -> None:
    log: list[str] = []
    old = made("old", lambda i: Run(failure="lost"), log)
    claim = compare(old, timed("new", 1.0, log=log), schedule=ABBA(), stop=UntilClear())
    assert log == ["old"]
    assert claim.failed == "old"


def test_disturbed_runs_are_in_no_pair_and_spare_rounds_replace_them() -> None:
    load = Load(1.0, 2, foreign_s=2.0)
    old = made("old", lambda i: Run(seconds=50.0, busy="others", load=load) if i == 3 else Run(seconds=2 + 0.01 * i))
    claim = compare(old, noisy("new", 1.0), schedule=Rounds(), stop=Fixed(), patience=patience())
    assert claim.verdict is Verdict.PASS
    assert claim.num_pairs == 8
    assert max(claim.old_s) < 3
    assert claim.busy == ""
    assert claim.load.foreign_s == 2.0  # disturbed runs are still reported


def test_a_machine_that_stays_busy_ends_it_and_says_so() -> None:
    log: list[str] = []
    old, new = (made(name, lambda i: Run(seconds=1.0, busy="others"), log) for name in ("old", "new"))
    claim = compare(old, new, schedule=Rounds(), stop=Fixed(), patience=patience())
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert (claim.ratio, claim.num_pairs) == (None, 0)
    assert "the machine stayed busy" in claim.busy
    assert "make (2.0 cores)" in claim.busy
    assert len(log) <= 4


def test_who_goes_on_gets_a_verdict_that_says_the_machine_was_busy() -> None:
    old, new = (made(n, lambda i, s=s: Run(seconds=s + 0.001 * i, busy="others")) for n, s in (("old", 2), ("new", 1)))
    claim = compare(old, new, schedule=Rounds(), stop=Fixed(), patience=patience("go-on"))
    assert claim.verdict is Verdict.PASS
    assert claim.busy == "the machine was busy: others"


def test_an_open_verdict_on_a_quiet_machine_blames_nobody() -> None:
    """The machine was busy before the comparison; its own runs were all quiet."""
    waiting = patience()
    waiting.cause = "others"
    draw = random.Random(3)
    old, new = (made(name, lambda i: Run(seconds=draw.uniform(1, 3))) for name in ("old", "new"))
    claim = compare(old, new, schedule=Rounds(), stop=Fixed(lost_after=0), patience=waiting)
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert claim.busy == ""


class Clock:
    """Each run takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def side(self, name: str, seconds: float, log: list[str]) -> Fake:
        def make(i: int) -> Run:
            self.now += 1
            return Run(seconds=seconds + 0.001 * i)

        return made(name, make, log)


@pytest.mark.parametrize(("soft", "num_rounds"), [(0.0, 6), (12.0, 7), (13.0, 7), (100.0, 8)])
def test_after_the_soft_limit_no_round_is_begun_once_there_are_enough_pairs(soft: float, num_rounds: int) -> None:
    clock, log = Clock(), list[str]()
    limit = TimeLimit(soft=soft, clock=clock)
    claim = compare(clock.side("old", 2, log), clock.side("new", 1, log), schedule=Rounds(), stop=Fixed(), limit=limit)
    assert claim.num_pairs == num_rounds
    assert len(log) == 2 * num_rounds


@pytest.mark.parametrize(("hard", "num_rounds"), [(0.5, 1), (7.5, 3), (8.0, 4)])
def test_no_round_is_begun_that_would_not_end_by_the_hard_limit(hard: float, num_rounds: int) -> None:
    """Nobody knows how long the first one takes, so it is begun."""
    clock, log = Clock(), list[str]()
    limit = TimeLimit(hard=hard, clock=clock)
    claim = compare(clock.side("old", 2, log), clock.side("new", 1, log), schedule=Rounds(), stop=Fixed(), limit=limit)
    assert claim.num_pairs == num_rounds
    assert clock.now == 2 * num_rounds


@pytest.mark.parametrize("hard", [2.5, 4.0])
def test_a_round_that_the_hard_limit_cuts_off_does_not_count(hard: float) -> None:
    clock = Clock()
    limit = TimeLimit(hard=hard, clock=clock)

    def cut(i: int) -> Run:
        clock.now += 2
        return Run(failure="stopped") if clock.now >= hard else Run(seconds=2.0)

    found = compare_all(
        [(made("old", cut), made("new", cut))], schedule=Rounds(), stop=Fixed(), limit=limit, old_may_fail=True
    )
    (claim,) = found.claims
    assert (claim.num_pairs, claim.failure) == (0, "")
    assert not any(found.runs.values())


def test_a_failure_before_the_hard_limit_counts() -> None:
    clock, log = Clock(), list[str]()
    limit = TimeLimit(hard=100.0, clock=clock)
    broken = made("new", lambda i: Run(failure="no such operator"))
    claim = compare(clock.side("old", 2, log), broken, schedule=Rounds(), stop=Fixed(), limit=limit)
    assert claim.failed == "new"


def test_it_is_told_how_long_claims_and_rounds_took() -> None:
    clock, log = Clock(), list[str]()
    a, b, c, d = (clock.side(name, seconds, log) for name, seconds in (("a", 2), ("b", 1), ("c", 2), ("d", 3)))
    found = compare_all([(a, b), (c, d)], schedule=ABBA(), stop=Fixed(), limit=TimeLimit(clock=clock))
    assert [claim.seconds for claim in found.claims] == [16, 6]  # eight pairs, and three lost ones, of two seconds
    assert found.longest_s == 4


@pytest.mark.parametrize(("soft", "is_clear"), [(100.0, True), (13.0, False)])
def test_it_is_clear_once_no_further_pair_is_wanted(soft: float, is_clear: bool) -> None:
    clock, log = Clock(), list[str]()
    limit = TimeLimit(soft=soft, clock=clock)
    claim = compare(clock.side("old", 2, log), clock.side("new", 1, log), schedule=Rounds(), stop=Fixed(), limit=limit)
    assert claim.is_clear is is_clear


def test_a_side_can_be_measured_alone() -> None:
    found = compare_all([], schedule=Rounds(), stop=Fixed(3, 1), alone=[timed("old", 1.0)])
    assert found.claims == []
    assert [run.seconds for run in found.runs["old"]] == [1.0] * 3


def test_the_evidence_of_both_is_held_together() -> None:
    old = made("old", lambda i: Run(seconds=2 + 0.01 * i, evidence=Losses(by_step=(2.0, 1.0)) if i == 0 else None))
    new = made("new", lambda i: Run(seconds=1 + 0.01 * i, evidence=Losses(by_step=(2.0, 3.0)) if i == 0 else None))
    claim = compare(old, new, schedule=Rounds(), stop=Fixed())
    assert claim.agreement is not None
    assert not claim.agreement.is_same
    assert "from step 2 on" in claim.agreement.words


def test_progress_is_told_after_each_measurement() -> None:
    told: list[tuple[int, int]] = []

    def report(done: int, measured: object) -> None:
        assert isinstance(measured, list)
        told.extend((done, len(one.counted)) for one in measured if isinstance(one, Progress))

    compare_all([(timed("old", 2.0, 2.1), timed("new", 1.0, 1.1))], schedule=ABBA(), stop=Fixed(2, 1), report=report)
    assert told == [(0, 1), (1, 1), (1, 2), (2, 2)]


def test_many_claims_are_corrected_for_their_number() -> None:
    """One benchmark that is only just slower is no FAIL among twenty that are not."""
    draw = random.Random(5)
    pairs = [(noisy(f"old {i}", 1.0, 2 * i), noisy(f"new {i}", 1.0, 2 * i + 1)) for i in range(20)]
    old = made("old", lambda i: Run(seconds=1 + 0.01 * draw.gauss(0, 1)))
    new = made("new", lambda i: Run(seconds=1.011 + 0.01 * draw.gauss(0, 1)))
    alone = compare(old, new, schedule=ABBA(), stop=Sequential())
    found = compare_all([*pairs, (old, new)], schedule=ABBA(), stop=Sequential())
    assert alone.p_value is not None
    assert Counter(claim.verdict for claim in found.claims)[Verdict.FAIL] == 0


def test_a_screening_ends_with_the_first_disturbed_pair_once_patience_is_spent() -> None:
    log: list[str] = []
    old = made("old", lambda i: Run(seconds=1.0, busy="others") if i % 2 else Run(seconds=1.0), log)
    claim = compare(old, timed("new", 0.5, log=log), schedule=ABBA(), stop=UntilClear(), patience=patience())
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert len(log) <= 5


def test_evidence_of_two_different_pairs_is_held_together() -> None:
    old = made("old", lambda i: Run(seconds=2 + 0.01 * i, evidence=Losses(by_step=(2.0,)) if i == 1 else None))
    new = made("new", lambda i: Run(seconds=1 + 0.01 * i, evidence=Losses(by_step=(2.0,)) if i == 0 else None))
    claim = compare(old, new, schedule=Rounds(), stop=Fixed())
    assert claim.agreement is not None
    assert claim.agreement.is_same


def test_where_drift_cancels_the_ratios_tell_the_noise() -> None:
    """The processes drift by 40 %, both sides alike; the new one is 3 % faster in each pair."""
    drift = [1 + 0.05 * i for i in range(8)]
    old_s = [d * (1 + 0.001 * (i % 2)) for i, d in enumerate(drift)]
    new_s = [d / 1.03 for d in drift]
    assert Fixed(noise_from="pairs").judge(old_s, new_s, 1, old_s).verdict is Verdict.PASS
    assert Fixed().judge(old_s, new_s, 1, old_s).verdict is not Verdict.PASS


@pytest.mark.parametrize(("spare", "num_rounds"), [(1, 9), (2, 10), (4, 12)])
def test_no_more_rounds_than_are_spare_replace_disturbed_ones(spare: int, num_rounds: int) -> None:
    """Every second measurement is disturbed, so the machine never looks hopeless."""
    old = made("old", lambda i: Run(seconds=2.0, busy="others"))
    new = noisy("new", 1.0, 1)
    waiting = QuietWait("wait", 100.0, glance=lambda seconds: (Load(seconds, 2), ""), clock=lambda: 0.0)
    waiting.left_s = 0.0
    found = compare_all([(old, new)], schedule=Rounds(), stop=replace(Fixed(), spare=spare), patience=waiting)
    assert len(found.runs["new"]) == num_rounds


def test_a_disturbed_round_of_a_rule_without_spare_rounds_is_the_last() -> None:
    old = made("old", lambda i: Run(seconds=2.0, busy="others" if i == 1 else ""))
    found = compare_all(
        [(old, timed("new", 2.1, 1.9))], schedule=ABBA(), stop=UntilClear(least=6), patience=patience(wait_s=0.0)
    )
    assert len(found.runs["new"]) == 2


def test_a_side_alone_ends_by_the_soft_limit_once_enough_of_its_runs_count() -> None:
    clock = Clock()

    def make(i: int) -> Run:
        clock.now += 1
        return Run(seconds=1.0, failure="lost" if i == 1 else "")

    limit = TimeLimit(soft=0.5, clock=clock)
    found = compare_all([], schedule=Rounds(), stop=Fixed(8, 3), alone=[made("old", make)], limit=limit)
    assert len(found.runs["old"]) == 4, "three that count, and one that failed"


def test_of_two_sides_alone_both_must_have_enough_runs() -> None:
    clock = Clock()

    def make(i: int) -> Run:
        clock.now += 1
        return Run(seconds=1.0)

    late = made("late", lambda i: Run(failure="lost") if i < 2 else Run(seconds=1.0))
    limit = TimeLimit(soft=0.5, clock=clock)
    found = compare_all([], schedule=Rounds(), stop=Fixed(8, 3), alone=[made("a", make), late], limit=limit)
    assert len(found.runs["late"]) == 5


def test_the_soft_limit_waits_for_the_claim_with_the_fewest_pairs() -> None:
    clock, log = Clock(), list[str]()
    old, fast = clock.side("old", 2, log), clock.side("fast", 1, log)
    odd = made("odd", lambda i: Run(seconds=1.0, busy="others" if i in (0, 2) else ""))
    found = compare_all(
        [(old, fast), (old, odd)],
        schedule=Rounds(),
        stop=Fixed(20),
        patience=patience(),
        limit=TimeLimit(1, clock=clock),
    )
    assert [claim.num_pairs for claim in found.claims] == [8, 6]


def test_a_variant_that_fails_ends_its_claim_where_the_original_may_fail() -> None:
    new = made("new", lambda i: Run(failure="lost") if i == 3 else Run(seconds=1.0))
    found = compare_all([(noisy("old", 2.0), new)], schedule=Rounds(), stop=Fixed(), old_may_fail=True)
    (claim,) = found.claims
    assert (claim.num_pairs, claim.failure, claim.failed) == (3, "lost", "new")
    assert [bool(run.failure) for run in found.runs["new"]] == [False, False, False, True]
    assert claim.is_clear


def test_what_the_machine_did_is_the_sum_over_all_runs() -> None:
    old = made("old", lambda i: Run(seconds=2 + 0.01 * i, load=Load(1.0, 2, foreign_s=0.01)))
    new = made("new", lambda i: Run(seconds=1 + 0.01 * i, load=Load(0.5, 2, foreign_s=0.02)))
    claim = compare(old, new, schedule=Rounds(), stop=Fixed())
    assert (claim.load.seconds, claim.load.foreign_s) == (12.0, pytest.approx(0.24))
    assert [(a.seconds, b.seconds) for a, b in claim.pairs] == list(zip(claim.old_s, claim.new_s, strict=True))


def test_a_machine_that_turns_busy_blames_it_where_the_verdict_is_open() -> None:
    """Two pairs are quiet; then nothing is."""

    def turns_busy(seconds: float) -> Callable[[int], Run]:
        return lambda i: Run(seconds=seconds + 0.01 * i, busy="" if i < 2 else "others")

    old, new = made("old", turns_busy(2.0)), made("new", turns_busy(1.0))
    found = compare_all([(old, new)], schedule=Rounds(), stop=Fixed(), patience=patience())
    (claim,) = found.claims
    assert (claim.verdict, claim.num_pairs) == (Verdict.INCONCLUSIVE, 2)
    assert "the machine stayed busy" in claim.busy
    assert not claim.is_clear


def test_without_a_single_run_of_the_original_a_busy_machine_does_not_end_it() -> None:
    """The original's first process fails; one round later there is something to speak of."""
    log: list[str] = []
    old = made("old", lambda i: Run(failure="lost") if i == 0 else Run(seconds=1.0, busy="others"), log)
    new = made("new", lambda i: Run(seconds=1.0, busy="others"), log)
    waiting = patience(wait_s=0.0)
    for _ in range(3):
        waiting.measure(lambda: "others", lambda cause: cause)
    assert waiting.has_run_out
    found = compare_all([(old, new)], schedule=ABBA(), stop=Fixed(), patience=waiting, old_may_fail=True)
    assert 1 < len(found.runs["old"]) < 8


def test_evidence_of_one_side_alone_is_compared_with_nothing() -> None:
    old = made("old", lambda i: Run(seconds=2 + 0.01 * i, evidence=Losses(by_step=(2.0,))))
    assert compare(old, noisy("new", 1.0), schedule=Rounds(), stop=Fixed()).agreement is None
