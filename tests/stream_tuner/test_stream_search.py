"""The search chooses the fewest steps of the same quality, or the best quality within a budget, and never loses it."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whet.stream_tuner.search import Bench, Setting, Trial
from written_unets import write_unet

from whet.errors import OptionError
from whet.models.diffusion.unet import UNetConfig
from whet.stream_tuner import search
from whet.stream_tuner.clips import Clip
from whet.stream_tuner.quality import Change, Figures
from whet.streamer.sources.synthetic import SyntheticClip
from whet.streamer.stream import StreamOptions

FIGURES = Figures(30.0, 0.9, 1.0, 0.0, 0.0, ssim_by_frame=(0.9, 0.9))


@dataclasses.dataclass
class ScriptedBench(Bench):
    """Give the quality and the time that a test says, by the setting."""

    quality: dict = dataclasses.field(default_factory=dict)
    seconds: dict = dataclasses.field(default_factory=dict)

    def tried(self, setting: Setting, *, judges: bool = True, times: bool = True) -> Trial:
        options = setting.options
        ssim = self.quality.get((options.steps, options.sampler), 0.0)
        reasons = () if ssim >= 0.9 else ("it is worse",)
        figures = dataclasses.replace(FIGURES, ssim=ssim)
        time = self.seconds.get((options.steps, options.rolling, options.threads, setting.codec_threads))
        trial = Trial(setting, figures, Change(0.9 - ssim, (0, 0), reasons), time if times else None)
        self.trials.append(trial)
        return trial


def bench(**values) -> ScriptedBench:
    return ScriptedBench("target", "synthetic", "", [], 0.01, Path(), **values)


def setting(steps: int = 4, **values) -> Setting:
    return Setting(StreamOptions(steps=steps, sampler="lcm", **values))


def never() -> bool:
    return False


def test_the_fewest_steps_that_keep_the_quality_are_chosen():
    quality = {(1, "lcm"): 0.5, (1, "tcd"): 0.6, (2, "lcm"): 0.7, (2, "tcd"): 0.92, (3, "lcm"): 0.95}
    found = search.choose_fastest(bench(quality=quality), setting(), ["lcm", "tcd"], never)
    assert (found.options.steps, found.options.sampler) == (2, "tcd")


def test_where_nothing_keeps_the_quality_the_stream_stays():
    assert search.choose_fastest(bench(), setting(), ["lcm", "tcd"], never) == setting()


def test_a_search_whose_time_is_up_stays_where_it_is():
    found = search.choose_fastest(bench(quality={(1, "lcm"): 1.0}), setting(), ["lcm"], lambda: True)
    assert found == setting()


@given(st.dictionaries(st.tuples(st.integers(1, 4), st.sampled_from(["lcm", "tcd"])), st.floats(0, 1)))
def test_no_choice_costs_quality(quality):
    found = search.choose_fastest(bench(quality=quality), setting(), ["lcm", "tcd"], never)
    kept = quality.get((found.options.steps, found.options.sampler), 0.0)
    assert found == setting() or kept >= 0.9
    assert found.options.steps <= 4
    better = [steps for (steps, _), ssim in quality.items() if ssim >= 0.9 and steps < 4]
    assert found.options.steps == min([*better, 4])


def times(of_steps: dict[int, float]) -> dict:
    return {(steps, True, None, None): seconds for steps, seconds in of_steps.items()}


def test_the_best_quality_within_the_budget_is_chosen():
    quality = {(1, "lcm"): 0.5, (1, "tcd"): 0.7, (2, "lcm"): 0.6, (2, "tcd"): 0.65, (3, "lcm"): 0.99}
    found = search.choose_best(
        bench(quality=quality, seconds=times({1: 0.01, 2: 0.02, 3: 0.05})), setting(), ["lcm", "tcd"], 0.03, never
    )
    assert (found.options.steps, found.options.sampler) == (1, "tcd")


def test_a_budget_that_not_even_one_step_keeps_is_refused():
    with pytest.raises(OptionError, match=r"no setting keeps the budget of 5\S* ms: one step a frame takes 10"):
        search.choose_best(bench(seconds=times({1: 0.01})), setting(), ["lcm"], 0.005, never)


@pytest.mark.parametrize("starts_rolling", [True, False])
@pytest.mark.parametrize(("seconds", "rolling"), [(0.010, True), (0.0202, False), (0.03, False)])
def test_a_rolling_batch_has_to_be_clearly_faster(seconds, rolling, starts_rolling):
    start = setting(2, rolling=starts_rolling)
    times = {(2, False, None, None): 0.0205, (2, True, None, None): seconds}
    assert search.choose_batch(bench(quality={(2, "lcm"): 1.0}, seconds=times), start).options.rolling == rolling
    # Where the quality is not the original's, nothing changes.
    assert search.choose_batch(bench(seconds=times), start).options.rolling == starts_rolling


def test_one_step_has_no_batch_to_choose():
    one = bench()
    assert search.choose_batch(one, setting(1)) == setting(1)
    assert not one.trials


def test_threads_are_changed_only_for_a_clear_gain(monkeypatch):
    monkeypatch.setattr(search.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    seconds = {
        (4, True, None, None): 0.020,
        (4, True, 1, None): 0.0199,
        (4, True, 2, None): 0.015,
        (4, True, 4, None): 0.0149,
        (4, True, 2, 1): 0.0149,
        (4, True, 2, 2): 0.012,
    }
    found = search.choose_threads(bench(seconds=seconds), setting(), has_codec=False)
    assert (found.options.threads, found.codec_threads) == (2, None)
    found = search.choose_threads(bench(seconds=seconds), setting(), has_codec=True)
    assert (found.options.threads, found.codec_threads) == (2, 2)


@pytest.fixture(scope="module")
def unet(tmp_path_factory) -> Path:
    config = UNetConfig(frame_size=16, grey_size=8, widths=(8, 8), embedding=16)
    return write_unet(tmp_path_factory.mktemp("unet") / "unet", config)


NEGATIVE = """
import torch
import whet


def stream():
    return whet.StreamWorkload(open=lambda: lambda frame: 1 - frame, frames=[torch.zeros(3, 16, 16)])
"""


@pytest.fixture
def negative(tmp_path) -> str:
    (tmp_path / "negative.py").write_text(NEGATIVE, encoding="utf-8")
    return f"{tmp_path / 'negative.py'}:stream"


def real_bench(target: object, frames, tmp_path: Path, options: StreamOptions) -> Bench:
    found = Bench(str(target), "synthetic:20", "", [Clip(frames, frames)], 0.5, tmp_path)
    found.original = found.tried(Setting(options), times=False).figures
    return found


def test_settings_are_judged_and_timed_on_the_stream_itself(unet, tmp_path):
    frames = [frame.image for frame in SyntheticClip(5, size=(16, 16))]
    judging = real_bench(unet, frames, tmp_path, StreamOptions(steps=2))
    same = judging.tried(Setting(StreamOptions(steps=2)))
    assert same.is_same and same.change.drop == 0 and same.s_per_frame > 0
    other = judging.tried(Setting(StreamOptions(steps=2, seed=1)), times=False)
    assert other.figures.ssim != same.figures.ssim
    assert judging.tried(Setting(StreamOptions(steps=60))).failure.startswith("--sampler lcm has at most 50 steps")
    assert [trial.setting.options.steps for trial in judging.trials] == [2, 2, 2, 60]


def test_still_scenes_are_skipped_where_there_are_some(negative, tmp_path):
    moving = [frame.image for frame in SyntheticClip(8, size=(16, 16))]
    start = Setting(StreamOptions())
    found, why = search.choose_filter(real_bench(negative, moving, tmp_path, start.options), start)
    assert found == start and "none are skipped" in why
    still = [moving[0]] * 8
    found, why = search.choose_filter(real_bench(negative, still, tmp_path, start.options), start)
    assert found.options.stillness == search.STILL and "repeat the answer before" in why


def test_samplers_begin_with_the_streams_own(unet):
    assert search.samplers(str(unet), StreamOptions())[:2] == ["lcm", "tcd"]
    assert search.samplers(str(unet), StreamOptions(sampler="ddim"))[0] == "ddim"
