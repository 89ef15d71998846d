"""Streams that drift, stop or loop are found, and faithful ones are not."""

import json
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from whet.errors import TargetError
from whet.streamer.drift.calibration import calibrate
from whet.streamer.drift.measures import MEASURES
from whet.streamer.drift.meter import DriftMeter, fitted
from whet.streamer.drift.report import DriftReport, report

Clip = list[np.ndarray]
Judged = Callable[..., DriftReport]


def levels(values: np.ndarray) -> np.ndarray:
    return np.rint(values).clip(0, 255).astype(np.uint8)


def gained(clip: Clip, gain: float = 1.005) -> Iterator[np.ndarray]:
    return (levels(frame * gain**i) for i, frame in enumerate(clip))


def stopped(clip: Clip, at: int, period: int = 1) -> Iterator[np.ndarray]:
    """The input up to a frame, and from there on the last `period` frames again and again."""
    return (clip[i] if i < at else clip[at - period + (i - at) % period] for i in range(len(clip)))


def noisy(clip: Clip, scale: float = 6) -> Iterator[np.ndarray]:
    random = np.random.default_rng(0)
    return (levels(frame + random.normal(size=frame.shape) * scale) for frame in clip)


def styled(clip: Clip) -> Iterator[np.ndarray]:
    """Other colours, the same for every frame."""
    return (levels(255 * (frame / 255) ** 0.7 * [1, 0.8, 0.6]) for frame in clip)


def late(clip: Clip) -> Iterator[np.ndarray]:
    return (clip[max(0, i - 3)] for i in range(len(clip)))


FAITHFUL = {"identity": lambda clip: clip, "noise": noisy, "style": styled, "three frames late": late}


def names(found: DriftReport) -> set[str]:
    return {one.measure.name for one in found.verdict.results if one.is_drift}


@pytest.mark.parametrize("kind", FAITHFUL)
def test_a_faithful_stream_does_not_drift(panning: Clip, judged: Judged, kind: str) -> None:
    found = judged(FAITHFUL[kind](panning), panning)
    assert found.verdict.word == "no drift", found.verdict.reasons
    assert found.exit_code == 0


def test_a_colour_gain_is_found(panning: Clip, judged: Judged) -> None:
    found = judged(gained(panning), panning)
    assert found.verdict.word == "drift" and found.exit_code == 1
    assert {"colour", "own_colour"} <= names(found)
    assert found.verdict.from_frame is not None and 20 < found.verdict.from_frame < 200
    assert any(reason.startswith("Colour distance rose by") for reason in found.verdict.reasons)
    assert "colour distance" in found.sentence


@pytest.mark.parametrize("at", [30, 200])
def test_a_stopped_output_is_found_where_it_stops(panning: Clip, judged: Judged, at: int) -> None:
    found = judged(stopped(panning, at), panning)
    assert found.verdict.word == "drift"
    assert found.verdict.repeats_from == at
    assert "repetition" in names(found) and "repeated frames" in found.sentence and "novelty" not in found.sentence
    assert f"From frame {at} on, the output stands still" in found.verdict.reasons[0]


@pytest.mark.parametrize("period", range(2, 9))
def test_a_loop_is_found_when_it_begins_again(panning: Clip, judged: Judged, period: int) -> None:
    found = judged(stopped(panning, 200, period), panning)
    assert found.verdict.word == "drift"
    assert found.verdict.repeats_from == 200


@pytest.mark.parametrize(("at", "period"), [(200, 9), (120, 12), (200, 60), (180, 180)])
def test_a_loop_of_any_length_up_to_half_of_the_stream_is_found(
    panning: Clip, judged: Judged, at: int, period: int
) -> None:
    found = judged(stopped(panning, at, period), panning)
    assert found.verdict.word == "drift"
    assert found.series.loop is not None and found.series.loop.num_frames % period == 0
    assert found.verdict.repeats_from == at
    assert f"From frame {at} on, the output runs in a loop of {period} frames" in found.verdict.reasons[0]


@pytest.mark.parametrize("period", [12, 40])
def test_a_periodic_input_is_no_loop(panning: Clip, period: int) -> None:
    """The input itself repeats, with a little noise, and the output has less of it."""
    random = np.random.default_rng(0)
    meter = DriftMeter(240)
    for i in range(240):
        frame = panning[100 + i % period]
        meter.add(frame, levels(frame + random.normal(size=frame.shape) * 6))
    assert meter.series().loop is None


def test_growing_blur_is_found_as_lost_sharpness(panning: Clip, judged: Judged) -> None:
    def blurred() -> Iterator[np.ndarray]:
        for index, frame in enumerate(panning):
            share = 0.8 * index / len(panning)
            wide = np.pad(frame.astype(float), ((2, 2), (2, 2), (0, 0)), mode="edge")
            around = np.mean([wide[i : i + 32, j : j + 32] for i in range(5) for j in range(5)], axis=0)
            yield levels((1 - share) * frame + share * around)

    assert "sharpness" in names(judged(blurred(), panning))


@pytest.mark.realdata
@pytest.mark.parametrize("kind", FAITHFUL)
def test_real_footage_without_drift(footage: Callable[..., Clip], judged: Judged, kind: str) -> None:
    clip = footage(64)
    assert judged(FAITHFUL[kind](clip), clip).verdict.word == "no drift"


@pytest.mark.realdata
def test_real_footage_with_a_colour_gain(footage: Callable[..., Clip], judged: Judged) -> None:
    clip = footage(64)
    assert {"colour", "contrast"} <= names(judged(gained(clip), clip))


@pytest.mark.realdata
@pytest.mark.parametrize("period", [1, 2, 8])
def test_real_footage_that_stops_or_loops(footage: Callable[..., Clip], judged: Judged, period: int) -> None:
    clip = footage(64)
    assert judged(stopped(clip, 280, period), clip).verdict.repeats_from == 280


@pytest.mark.realdata
def test_real_footage_of_128_pixels(footage: Callable[..., Clip], judged: Judged) -> None:
    clip = footage(128, 300)
    assert judged(noisy(clip), clip).verdict.word == "no drift"
    assert judged(stopped(clip, 140, 2), clip).verdict.repeats_from == 140
    assert {"colour", "contrast"} <= names(judged(gained(clip), clip))


def test_few_frames_are_inconclusive(panning: Clip) -> None:
    meter = DriftMeter(100)
    for frame in panning[:100]:
        meter.add(frame, frame)
    found = report(meter.series())
    assert found.verdict.word == "inconclusive" and found.exit_code == 3
    assert found.verdict.reasons == ("There are 100 frames; a verdict takes at least 120.",)


def test_a_still_input_is_inconclusive_unless_colours_drift(panning: Clip) -> None:
    def tested(gain: float) -> DriftReport:
        meter = DriftMeter(150)
        for i in range(150):
            meter.add(levels(panning[0] * gain**i), panning[0])
        return report(meter.series())

    assert tested(1).verdict.word == "inconclusive"
    assert "The input moved in 0% of the frames" in tested(1).verdict.reasons[0]
    assert tested(1.005).verdict.word == "drift"


def test_another_scene_at_the_end_is_no_drift(panning: Clip) -> None:
    """An output that is dull in bright scenes alone, for an input that ends bright."""
    inputs = [frame // 3 if i < 180 else 170 + frame // 3 for i, frame in enumerate(panning)]
    meter = DriftMeter(len(inputs))
    for i, frame in enumerate(inputs):
        meter.add(frame if i < 180 else levels(100 + frame * 0.4), frame)
    found = report(meter.series())
    assert found.series.scene_change > 0.9
    assert found.verdict.word == "inconclusive"
    assert "another scene" in found.verdict.reasons[0]


def test_outputs_that_are_not_finite_are_drift(panning: Clip) -> None:
    meter = DriftMeter(150)
    for i, frame in enumerate(panning[:150]):
        output = frame / 255
        meter.add(output * math.nan if i >= 140 else output, frame)
    found = report(meter.series())
    assert (found.verdict.word, found.verdict.from_frame) == ("drift", 140)
    assert "broken frames" in found.sentence


def test_the_report_is_json(panning: Clip, judged: Judged) -> None:
    found = judged(stopped(panning, 200), panning)
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (told["verdict"], told["repeats_from"], told["num_frames"]) == ("drift", 200, 360)
    assert set(told["series"]) == set(told["measures"]) == {one.name for one in MEASURES}
    assert told["series"]["flicker"][0] is None and told["series"]["repetition"][250] == 0


def test_the_meter_keeps_few_frames(panning: Clip) -> None:
    meter = DriftMeter(len(panning))
    for frame in panning:
        meter.add(frame, frame)
    assert len(meter._recent) == 9
    strip = meter.series().thumbnails
    assert [one.index for one in strip] == list(range(0, 360, 30))
    assert np.array_equal(strip[1].output, panning[30])


def test_an_input_of_another_size_or_in_grey_is_fitted(panning: Clip) -> None:
    meter = DriftMeter(150)
    for frame in panning[:150]:
        grey = frame.mean(axis=2, keepdims=True) / 255
        meter.add(np.repeat(grey, 3, axis=2), grey[::2, ::2, 0])
    assert meter.series().values["contrast"] == pytest.approx(1, abs=0.2)
    ramp = np.linspace(0, 1, 8)[None, :, None] * np.ones((8, 1, 1))
    halved = fitted(ramp, (4, 4, 3))[1, :, 2]
    assert halved[1:3] == pytest.approx([2.5 / 7, 4.5 / 7], abs=0.01)


def test_outputs_of_two_shapes_are_refused(panning: Clip) -> None:
    meter = DriftMeter()
    meter.add(panning[0], panning[0])
    with pytest.raises(ValueError, match="one shape"):
        meter.add(panning[1][:20], panning[1])


def test_a_calibration_of_few_frames_is_refused(panning: Clip) -> None:
    with pytest.raises(TargetError, match="at least 64 frames, and there are 40"):
        calibrate(panning[:40])


def test_a_calibration_knows_how_much_footage_varies(panning: Clip) -> None:
    """Footage whose speed varies more needs a larger change of flicker before it is drift."""
    uneven = [panning[i + 6 * ((i // 40) % 2) * (i % 2)] for i in range(300)]
    assert calibrate(uneven).changes["flicker"] > 1.5 * calibrate(panning).changes["flicker"]
    assert calibrate(panning, seed=1).changes["colour"] == pytest.approx(calibrate(panning).changes["colour"], rel=0.2)
