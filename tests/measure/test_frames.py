"""Measures of frames, against loops in float64, known values and properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from whet.errors import MissingExtra
from whet.measure import frames
from whet.measure.frames import flow as flow_module

SHAPES = st.tuples(st.integers(11, 16), st.integers(11, 16), st.sampled_from([1, 3]))
PAIRS = SHAPES.flatmap(lambda shape: st.tuples(*[arrays(np.uint8, shape)] * 2))


def texture(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    """Return a smooth random image, uint8 [H, W, 3]: a sum of waves."""
    random = np.random.default_rng(seed)
    y, x = np.indices((height, width), dtype=float)
    waves = [
        np.stack([np.sin(a * x + b * y + c) for c in random.uniform(0, 6, 3)], axis=2)
        for a, b in random.uniform(-0.5, 0.5, (12, 2))
    ]
    image = np.sum(waves, axis=0)
    return np.rint(255 * (image - image.min()) / np.ptp(image)).astype(np.uint8)


def slow_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Wang et al. (2004), window by window."""
    offsets = np.arange(-5, 6)
    weights = np.exp(-(offsets[:, None] ** 2 + offsets[None] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    found = []
    for channel in range(a.shape[2]):
        for i in range(5, a.shape[0] - 5):
            for j in range(5, a.shape[1] - 5):
                x, y = (image[i - 5 : i + 6, j - 5 : j + 6, channel] for image in (a, b))
                mx, my = (weights * x).sum(), (weights * y).sum()
                vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
                cov = (weights * (x - mx) * (y - my)).sum()
                found.append((2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)))
    return float(np.mean(found))


def test_ssim_is_that_of_its_paper() -> None:
    random = np.random.default_rng(0)
    a = random.random((24, 19, 3))
    b = np.clip(a + 0.1 * random.normal(size=a.shape), 0, 1)
    assert frames.ssim(a, b) == pytest.approx(slow_ssim(a, b), abs=1e-9)


def test_ssim_is_that_of_scikit_image() -> None:
    metrics = pytest.importorskip("skimage.metrics", reason="scikit-image is not installed")
    a, b = texture(40, 50), texture(40, 50, seed=1)
    theirs = metrics.structural_similarity(
        a, b, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, channel_axis=2, data_range=255
    )
    assert frames.ssim(a, b) == pytest.approx(theirs, abs=1e-6)


def test_psnr_of_a_known_error() -> None:
    a = np.full((4, 4, 3), 100, np.uint8)
    assert frames.psnr(a, a + 10) == pytest.approx(20 * math.log10(25.5))
    assert frames.psnr(a, a) == math.inf


@given(PAIRS)
def test_likeness_is_symmetric_and_at_most_that_of_an_image_to_itself(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    assert frames.psnr(a, b) == frames.psnr(b, a)
    assert frames.ssim(a, b) == pytest.approx(frames.ssim(b, a), abs=1e-12)
    assert frames.ssim(a, a) == pytest.approx(1, abs=1e-9)
    assert -1 - 1e-9 <= frames.ssim(a, b) <= 1 + 1e-9


def hellinger(a: np.ndarray, b: np.ndarray) -> float:
    return frames.distance(frames.histogram(a), frames.histogram(b))


@given(PAIRS)
def test_hellinger_is_a_distance_of_at_most_1(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    assert 0 <= hellinger(a, b) <= 1
    assert hellinger(a, b) == pytest.approx(hellinger(b, a), abs=1e-12)
    assert hellinger(a, a) == pytest.approx(0, abs=1e-7)
    assert hellinger(a, a[::-1]) == pytest.approx(0, abs=1e-7)  # it knows no places


def test_hellinger_of_known_histograms() -> None:
    black, white = np.zeros((2, 2)), np.ones((2, 2))
    half = np.array([[0.0, 0.0], [1.0, 1.0]])
    assert hellinger(black, white) == 1
    with pytest.raises(ValueError, match="unequal shapes"):
        hellinger(np.zeros((2, 2)), np.zeros((2, 2, 3)))
    assert hellinger(black, half) == pytest.approx(math.sqrt(1 - math.sqrt(0.5)))


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    grey = np.random.default_rng(0).random((9, 7))
    slow = [
        grey[i - 1, j] + grey[i + 1, j] + grey[i, j - 1] + grey[i, j + 1] - 4 * grey[i, j]
        for i in range(1, 8)
        for j in range(1, 6)
    ]
    assert frames.sharpness(grey) == pytest.approx(np.var(slow))
    assert frames.sharpness(np.full((5, 5, 3), 77, np.uint8)) == pytest.approx(0, abs=1e-20)


def test_luminance_is_bt601() -> None:
    assert frames.luminance(np.eye(3)[None])[0] == pytest.approx([0.299, 0.587, 0.114])


def test_flicker_counts_what_the_reference_does_not_show() -> None:
    r0, r1 = np.zeros((4, 4)), np.full((4, 4), 0.25)
    assert frames.flicker(r0 + 0.5, r1 + 0.5, r0, r1) == 0
    assert frames.flicker(r0 + 0.5, r1 + 0.75, r0, r1) == pytest.approx(0.25)


@pytest.mark.parametrize("period", range(1, 9))
def test_repetition_finds_loops_of_up_to_8_frames(period: int) -> None:
    random = np.random.default_rng(period)
    moving = [random.random((6, 6, 3)) for _ in range(9)]
    looping = [moving[i % period] for i in range(9)]
    assert frames.repetition(looping, moving) == 0
    assert frames.repetition(moving, moving) == 1
    assert frames.repetition([0.5 * one for one in moving], moving) == pytest.approx(0.5)


def test_repetition_says_nothing_where_the_reference_stands_still() -> None:
    still = [np.full((6, 6), 128, np.uint8)] * 9
    random = np.random.default_rng(0)
    assert math.isnan(frames.repetition([random.random((6, 6)) for _ in range(9)], still))
    assert math.isnan(frames.repetition(still[:1], still[:1]))


@pytest.mark.parametrize(
    "frame",
    [np.zeros(3), np.zeros((0, 4)), np.zeros((2, 2), np.int32), np.full((2, 2), 1.5), np.full((2, 2), math.nan)],
    ids=["one dimension", "empty", "whole numbers", "beyond 1", "NaN"],
)
def test_what_is_no_frame_is_refused(frame: np.ndarray) -> None:
    with pytest.raises(ValueError, match="frame"):
        frames.psnr(frame, frame)


def test_frames_of_two_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        frames.ssim(np.zeros((12, 12)), np.zeros((12, 13)))


@given(st.integers(-4, 4), st.integers(-4, 4))
def test_a_shifted_image_has_no_warp_error_off_the_borders(dx: int, dy: int) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
    threads = cv2.getNumThreads()
    image = texture(72, 72)
    before, after = image[4:68, 4:68], image[4 + dy : 68 + dy, 4 + dx : 68 + dx]
    flow = frames.input_flow(before, after)
    inner = flow.visible[8:-8, 8:-8]
    assert inner.mean() > 0.8
    assert np.median(flow.backward[8:-8, 8:-8][inner], axis=0) == pytest.approx([dx, dy], abs=0.1)
    flow.visible[:10], flow.visible[-10:], flow.visible[:, :10], flow.visible[:, -10:] = [False] * 4
    apart = np.square((after / 255 - before / 255)[10:-10, 10:-10]).mean()
    assert frames.warp_error(before, after, flow) <= 0.01 * apart + 1e-9
    assert cv2.getNumThreads() == threads


def test_warp_error_is_that_of_the_output_and_not_of_the_input() -> None:
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    image = texture(64, 70)
    flow = frames.input_flow(image[:, 3:67], image[:, :64])
    frozen = image[:, 3:67]
    assert frames.warp_error(frozen, frozen, flow) > 100 * frames.warp_error(image[:, 3:67], image[:, :64], flow)


def test_what_was_hidden_before_is_left_out() -> None:
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    before, square = texture(64, 64), texture(16, 16, seed=5)
    after = before.copy()
    before[24:40, 20:36] = square
    after[24:40, 26:42] = square  # it moves right by 6, and uncovers 6 columns
    visible = frames.input_flow(before, after).visible
    assert visible[26:38, 20:26].mean() < 0.2
    assert visible[45:, :].mean() > 0.9


def test_warp_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    with pytest.raises(MissingExtra, match=r"torch-whet\[stream\]"):
        frames.input_flow(np.zeros((32, 32)), np.zeros((32, 32)))


def test_flow_refuses_what_dis_cannot_take() -> None:
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    side = flow_module.MIN_SIDE
    with pytest.raises(ValueError, match="at least 16×16"):
        frames.input_flow(np.zeros((side - 1, 40)), np.zeros((side - 1, 40)))
    frames.input_flow(np.zeros((side, side)), np.zeros((side, side)))
