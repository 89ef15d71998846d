"""The plan chooses the fewest steps of the same quality, or the best quality within a time, and never loses it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.core.recipe import Recipe
from whet.streamer.stream import StreamOptions
from whet.tuner.records import StreamFigures, TrialRecord
from whet.tuner.streams.plan import Choices, chosen, instead, next_recipe
from whet.tuner.streams.settings import Setting
from whet.tuner.streams.techniques import setting_of, step


@dataclass
class Streamed:
    """Give the quality and the time that a test says, by the setting; 0.9 is the quality of the original."""

    quality: Callable[[Setting], float] = lambda setting: 0.9
    seconds: Callable[[Setting], float] = lambda setting: 0.02
    records: list[TrialRecord] = field(default_factory=list)

    def searched(self, choices: Choices, most: int = 100) -> Recipe:
        """Try what the plan asks for, and return what it decides for."""
        own_s = self.seconds(choices.original)
        while len(self.records) < most and (recipe := next_recipe(choices, self.records)) is not None:
            assert recipe.steps not in {record.key for record in self.records}, "no recipe is asked for twice"
            setting = setting_of(choices.original, recipe.steps)
            quality, seconds = self.quality(setting), self.seconds(setting)
            cause = None
            if choices.within_s is None and quality < 0.9:
                cause = "quality"
            elif choices.within_s is not None and seconds > choices.within_s:
                cause = "slowdown"
            self.records.append(
                TrialRecord(
                    number=len(self.records),
                    steps=recipe.steps,
                    status="rejected" if cause else "done",
                    rejected_for=cause,
                    speedup=own_s / seconds,
                    quality=quality,
                )
            )
        return chosen(choices, self.records)


def choices(steps: int | None = 4, *, rolling: bool = False, sampler: str | None = "lcm", **known: object) -> Choices:
    values: dict = {"samplers": ("lcm", "tcd"), "names_models": False, "still_share": 0.0, "threads": ()}
    original = Setting(StreamOptions(steps=steps, sampler=sampler, rolling=rolling))
    return Choices(original, **{**values, "has_codec": False, **known})


def of_steps(quality: dict) -> Callable[[Setting], float]:
    """The quality by steps and sampler; other settings of the stream as it was keep its own."""
    return lambda setting: quality.get(
        (setting.options.steps, setting.options.sampler), 0.9 if setting.options.steps == 4 else 0.0
    )


def found(streamed: Streamed, about: Choices) -> Setting:
    return setting_of(about.original, streamed.searched(about).steps)


def test_the_fewest_steps_that_keep_the_quality_are_chosen():
    quality = {(1, "lcm"): 0.5, (1, "tcd"): 0.6, (2, "lcm"): 0.7, (2, "tcd"): 0.92, (3, "lcm"): 0.95}
    setting = found(Streamed(of_steps(quality)), choices())
    assert (setting.options.steps, setting.options.sampler) == (2, "tcd")


def test_where_nothing_keeps_the_quality_the_stream_stays():
    assert Streamed(of_steps({(4, "lcm"): 0.0})).searched(choices()) == Recipe()


def test_a_search_whose_time_is_up_keeps_what_it_knows():
    about = choices(names_models=True)
    streamed = Streamed(seconds=lambda setting: 0.02 * (setting.options.steps or 1))
    assert streamed.searched(about, most=0) == Recipe()
    streamed.searched(about, most=3)  # the batch, the models, one step
    assert [one.technique for one in chosen(about, streamed.records).steps] == ["sampling", "tuned_models"]


@given(st.dictionaries(st.tuples(st.integers(1, 4), st.sampled_from(["lcm", "tcd"])), st.floats(0, 1)))
def test_no_choice_costs_quality(quality):
    quality = {**quality, (4, "lcm"): 0.9}
    setting = found(Streamed(of_steps(quality)), choices())
    kept = quality.get((setting.options.steps, setting.options.sampler), 0.0)
    assert kept >= 0.9
    better = [steps for (steps, _), ssim in quality.items() if ssim >= 0.9 and steps < 4]
    assert setting.options.steps == min([*better, 4])


@given(st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_a_search_that_goes_on_asks_for_the_same(cut: int, seed: int):
    """The plan is a function of the trials alone, so that an interrupted search comes to the same decision."""
    about = choices(rolling=True, names_models=True, still_share=0.5, threads=(1, 2), has_codec=True)

    def drawn(setting: Setting) -> float:
        return 0.01 + (hash((seed, repr(setting))) % 1000) / 1e5

    whole, first = Streamed(seconds=drawn), Streamed(seconds=drawn)
    expected = whole.searched(about)
    first.searched(about, most=cut)
    assert Streamed(seconds=drawn, records=list(first.records)).searched(about) == expected


def test_the_best_quality_within_the_time_is_chosen():
    quality = {(1, "lcm"): 0.5, (1, "tcd"): 0.7, (2, "lcm"): 0.6, (2, "tcd"): 0.65, (3, "lcm"): 0.99}
    streamed = Streamed(of_steps(quality), lambda setting: {1: 0.01, 2: 0.02}.get(setting.options.steps or 0, 0.05))
    setting = found(streamed, choices(within_s=0.03))
    assert (setting.options.steps, setting.options.sampler) == (1, "tcd")
    assert (
        max(record.steps[0].options["steps"] for record in streamed.records if record.steps[0].technique == "sampling")
        == 3
    )


@pytest.mark.parametrize("starts_rolling", [True, False])
@pytest.mark.parametrize(("seconds", "rolling"), [(0.010, True), (0.0202, False), (0.03, False)])
def test_a_rolling_batch_has_to_be_clearly_faster(seconds, rolling, starts_rolling):
    def time(setting: Setting) -> float:
        return seconds if setting.options.rolling else 0.0205

    about = choices(rolling=starts_rolling)
    assert (
        found(Streamed(seconds=time, quality=lambda s: 0.9 if s.options.steps == 4 else 0), about).options.rolling
        == rolling
    )
    # Where the quality is not the original's, nothing changes.
    assert found(Streamed(seconds=time, quality=lambda s: 0.0), about).options.rolling == starts_rolling


def test_one_step_has_no_batch_to_choose():
    streamed = Streamed()
    assert streamed.searched(choices(1)) == Recipe()
    assert not streamed.records


def test_the_order_of_models_and_steps_depends_on_the_batch():
    """A model that takes one frame at a time is tuned first; in a rolling batch the steps are its batch."""
    for rolling, order in ((False, ["tuned_models", "sampling"]), (True, ["sampling", "tuned_models"])):
        streamed = Streamed(seconds=lambda s: 0.01 if s.options.rolling else 0.1)
        about = choices(rolling=rolling, names_models=True)
        if not rolling:
            streamed.seconds = lambda s: 0.1 if s.options.rolling else 0.01
        streamed.searched(about)
        asked = [record.steps[-1].technique for record in streamed.records if len(record.steps) == 1][1:]
        first = [name for name in asked if name in order]
        assert first[0] == order[0]


def test_threads_are_changed_only_for_a_clear_gain():
    seconds = {
        (None, None): 0.020, (1, None): 0.0199, (2, None): 0.015, (4, None): 0.0149, (2, 1): 0.0149, (2, 2): 0.012,
    }  # fmt: skip

    def time(setting: Setting) -> float:
        return seconds.get((setting.options.threads, setting.codec_threads), 0.02)

    for has_codec, expected in ((False, (2, None)), (True, (2, 2))):
        about = choices(1, threads=(1, 2, 4), has_codec=has_codec)
        setting = found(Streamed(seconds=time), about)
        assert (setting.options.threads, setting.codec_threads) == expected


def test_still_scenes_are_skipped_where_there_are_some():
    assert found(Streamed(), choices(1, still_share=0.5)).options.stillness == 0.98
    assert found(Streamed(), choices(1, still_share=0.01)).options.stillness is None
    worse = Streamed(lambda setting: 0.9 if setting.options.stillness is None else 0.5)
    assert found(worse, choices(1, still_share=0.5)).options.stillness is None


def test_what_may_be_as_good_on_unseen_frames_has_the_streams_own_steps():
    best = Recipe(steps=(step("sampling", steps=1, sampler="lcm"), step("tuned_models")))
    kept, strict = instead(choices(names_models=True), best)
    assert kept.steps == (step("tuned_models"),)
    assert strict.steps == (step("tuned_models", drop="tenth"),)
    assert instead(choices(), Recipe(steps=best.steps[:1])) == []


def test_within_a_time_the_batch_and_still_frames_still_keep_the_quality():
    """Fast enough is not enough: where nothing is rejected for quality, the plan looks at it itself."""

    def record(steps, status, is_same, **known) -> TrialRecord:
        figures = StreamFigures(psnr_db=1.0, ssim=0.5, sharpness=1.0, flicker=0.0, warp_error=0.0, is_same=is_same)
        return TrialRecord(number=0, steps=steps, status=status, speedup=2.0, quality=0.5, stream=figures, **known)

    about = choices(rolling=True, samplers=("lcm",), within_s=0.03)
    other = (step("batching", rolling=False),)
    for is_same in (True, False):
        slow = record(other, "rejected", is_same, rejected_for="slowdown")
        asked = next_recipe(about, [slow])
        assert asked is not None and (other[0] in asked.steps) is is_same
    one = choices(None, sampler=None, samplers=("",), still_share=0.5, within_s=0.03)
    still = (step("still_frames"),)
    assert chosen(one, [record(still, "done", is_same=True)]).steps == still
    assert chosen(one, [record(still, "done", is_same=False)]).steps == ()


def test_a_stream_of_many_steps_asks_only_for_what_its_space_has():
    about = choices(12, samplers=("lcm",))
    streamed = Streamed(lambda setting: 0.9 if (setting.options.steps or 0) >= 11 else 0.0)
    assert found(streamed, about).options.steps == 11


def test_what_another_machine_tries_is_waited_for():
    running = TrialRecord(number=0, steps=(step("batching", rolling=True),), status="running")
    assert next_recipe(choices(), [running]) is None
