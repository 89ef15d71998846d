"""The quality of a stream's answers: what is measured, and when another way to compute them is as good."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.streamer.sources.synthetic import SyntheticClip
from whet.tuner.streams.clips import Clip, clips_of_source
from whet.tuner.streams.quality import Figures, change, measured, with_truth


def moving(count: int = 8) -> list[np.ndarray]:
    return [frame.image for frame in SyntheticClip(count, size=(32, 32))]


def clip(**values) -> Clip:
    frames = moving()
    return Clip(frames, **{"truth": frames, **values})


def figures_of(images, **values) -> Figures:
    return measured([clip(**values)], [images])


def test_the_truth_itself_is_without_fault():
    found = figures_of(moving())
    assert (found.psnr_db, found.ssim, found.sharpness, found.flicker, found.warp_error) == (100, 1, 1, 0, 0)
    assert found.accuracy is None and len(found.ssim_by_frame) == 8


def test_a_known_error_has_its_known_ratio():
    brighter = [np.clip(image.astype(int) + 5, 0, 255).astype(np.uint8) for image in moving()]
    dark = [np.minimum(image, 250) for image in moving()]
    found = measured([Clip(dark, dark)], [[(image + 5).astype(np.uint8) for image in dark]])
    assert found.psnr_db == pytest.approx(20 * np.log10(255 / 5), abs=1e-6)  # 10 log10(1 / mse)
    assert figures_of(brighter).ssim < 1


def test_judges_score_each_answer():
    found = figures_of(moving(), judge=lambda images: [float(i % 2 == 0) for i in range(len(images))])
    assert found.accuracy == 0.5


def noisy(images, amount: float) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [np.clip(image + random.normal(0, amount, image.shape), 0, 255).round().astype(np.uint8) for image in images]


def frozen(images) -> list[np.ndarray]:
    return [images[0]] * len(images)


def blurred(images) -> list[np.ndarray]:
    return [
        ((image.astype(int) + np.roll(image, 1, 0) + np.roll(image, 1, 1)) // 3).astype(np.uint8) for image in images
    ]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda images: noisy(images, 20), "structural similarity"),
        (lambda images: noisy(images, 20), "flicker"),
        (frozen, "structural similarity"),
        (blurred, "sharpness"),
    ],
)
def test_what_is_worse_is_found_and_named(spoil, named):
    original = figures_of(noisy(moving(), 1))
    found = change(original, figures_of(spoil(moving())), 0.01)
    assert not found.is_same
    assert any(named in reason for reason in found.reasons)
    assert "warp" not in named or found.drop > 0


def test_the_same_answers_are_the_same_quality():
    original = figures_of(noisy(moving(), 3))
    assert change(original, original, 0.0).is_same
    assert change(original, original, 0.0).drop == 0


def test_a_lower_accuracy_is_a_lower_quality():
    original = figures_of(moving(), judge=lambda images: [1.0] * len(images))
    worse = figures_of(moving(), judge=lambda images: [1.0] * (len(images) - 1) + [0.0])
    assert change(original, worse, 0.01).reasons == ("the accuracy drops from 1 to 0.875",)
    assert change(original, worse, 0.2).is_same


@given(st.floats(0, 0.3), st.floats(0, 0.3))
def test_the_allowed_drop_decides(drop: float, allowed: float):
    original = Figures(psnr_db=30.0, ssim=0.8, sharpness=1.0, flicker=0.01, warp_error=0.01, ssim_by_frame=(0.8, 0.8))
    value = 0.8 * (1 - drop)
    found = original.model_copy(update={"ssim": value, "ssim_by_frame": (value, value)})
    result = change(original, found, allowed)
    if abs(drop - allowed) > 1e-9:
        assert result.is_same == (drop < allowed)
    assert result.drop == pytest.approx(drop, abs=1e-12)


def test_where_nobody_knows_the_truth_it_is_what_the_original_makes():
    answers = noisy(moving(), 5)
    judged = with_truth([Clip(moving())], [answers])
    assert measured(judged, [answers]).psnr_db == 100
    known = clip()
    assert with_truth([known], [answers])[0].truth is known.truth


def test_frames_that_are_too_small_for_flow_have_no_warp_error():
    frames = [frame.image for frame in SyntheticClip(4, size=(12, 12))]
    assert measured([Clip(frames, frames)], [noisy(frames, 9)]).warp_error == 0


def test_a_source_gives_frames_to_choose_on_and_later_ones_to_report_on():
    clips = clips_of_source("synthetic:30", (16, 16), 10)
    first, second = clips.chosen_on[0].frames, clips.reported_on[0].frames
    assert len(first) == len(second) == 10
    assert not any(np.array_equal(a, b) for a in first for b in second)
    assert first[0].shape == (16, 16, 3)


def test_a_source_of_one_frame_is_refused():
    with pytest.raises(Exception, match="has 1 frames; a stream is tuned on at least 2"):
        clips_of_source("synthetic:1", (16, 16), 10)
