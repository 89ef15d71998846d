"""Speculation judges itself: on where it pays, off where it does not, and tried again."""

from whet.server.speculation_controller import SpeculationController


def run(
    controller: SpeculationController, num_steps: int, *, gain: float, num_seqs: int = 1, finds: float = 1.0
) -> int:
    """Steps of a world in which drafting multiplies tokens a second by `gain`. Returns how many had drafts.

    finds: the share of steps in which there is something to propose.
    """
    drafted = 0
    for step in range(num_steps):
        wants = controller.wants_drafts(num_seqs)
        had = wants and (step % 10) < 10 * finds
        drafted += had
        controller.observe(num_seqs, had, num_seqs * (3 if had else 1), 0.01 * num_seqs * (3 / gain if had else 1))
    return drafted


def test_on_where_it_pays() -> None:
    controller = SpeculationController()
    assert run(controller, 1000, gain=1.5) > 950
    assert controller.is_on
    assert controller.gain is not None
    assert abs(controller.gain - 1.5) < 0.01


def test_off_where_it_does_not_and_tried_again_ever_more_seldom() -> None:
    controller = SpeculationController()
    first, later = run(controller, 1000, gain=0.7), run(controller, 10_000, gain=0.7)
    assert 4 <= first < 50
    assert 0 < later < 50
    assert not controller.is_on
    assert controller.gain is not None
    assert abs(controller.gain - 0.7) < 0.01


def test_when_the_world_changes_it_follows() -> None:
    controller = SpeculationController()
    run(controller, 500, gain=0.7)
    run(controller, 2000, gain=2.0)
    assert run(controller, 1000, gain=2.0) > 900
    run(controller, 1000, gain=0.7)
    assert run(controller, 1000, gain=0.7) < 100


def test_each_number_of_sequences_has_its_own_judgement() -> None:
    controller = SpeculationController()
    for _ in range(20):
        run(controller, 50, gain=1.5, num_seqs=1)
        run(controller, 50, gain=0.6, num_seqs=32)
    assert run(controller, 100, gain=1.5, num_seqs=1) > 90
    assert controller.is_on
    assert run(controller, 100, gain=0.6, num_seqs=32) < 20
    assert not controller.is_on


def test_where_it_does_not_pay_for_few_it_is_not_tried_on_more() -> None:
    controller = SpeculationController()
    run(controller, 100, gain=0.6, num_seqs=2)
    assert run(controller, 60, gain=0.6, num_seqs=16) == 0
    assert run(controller, 60, gain=1.5, num_seqs=1) > 40
    assert 0 < run(controller, 60, gain=0.6, num_seqs=16) < 10


def test_a_trial_ends_early_where_it_is_hopeless() -> None:
    assert run(SpeculationController(), 60, gain=0.6) == 4
    assert run(SpeculationController(), 60, gain=0.95) == 16


def test_finding_nothing_is_not_held_against_it() -> None:
    controller = SpeculationController()
    run(controller, 500, gain=1.5, finds=0.2)
    assert controller.is_on
    assert run(controller, 1000, gain=1.5, finds=0.2) > 150
    assert SpeculationController().gain is None
    assert not SpeculationController().is_on
