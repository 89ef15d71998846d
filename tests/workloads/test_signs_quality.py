"""Measures of drawn frames, against other libraries and known values."""

import numpy as np
import pytest
import torch
from benchmarks.built_in_weights.signs_noise import as_shown
from benchmarks.built_in_weights.signs_quality import UnseenClips, bicubic, drawn, measured
from benchmarks.built_in_weights.writing import save_weights
from sign_photos import ramps
from torch import nn

from whet.errors import TargetError
from whet.measure.frames import psnr, ssim
from whet.workloads.signs_classifier import is_recognised, load_classifier, new_classifier
from whet.workloads.signs_data import ClipMaker, camera_frames


def frames(count=3, seed=0):
    made = ClipMaker(ramps()).make(range(seed, seed + count), torch.zeros(count, 1, dtype=torch.int64))
    return made.frames_BTCHW[:, 0]


def noisy(truth, level):
    return truth + level * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))


def test_quality_is_the_mean_over_frames_on_the_scale_from_0_to_1():
    clips = UnseenClips.of(ramps(), num_photos=4, num_frames=2)
    found = measured(noisy(clips.frames_BTCHW, 0.1), clips, FirstPixel())
    images = [
        (x.flatten(0, 1).permute(0, 2, 3, 1).double().numpy() + 1) / 2
        for x in (noisy(clips.frames_BTCHW, 0.1), clips.frames_BTCHW)
    ]
    pairs = list(zip(*images, strict=True))
    assert found.psnr_db == pytest.approx(np.mean([psnr(a, b) for a, b in pairs]))
    assert found.psnr_db == pytest.approx(26.02, abs=0.2)  # noise of 0.1 in a range of 2
    assert found.ssim == pytest.approx(np.mean([ssim(a, b) for a, b in pairs]))
    assert found.sharpness > 2


def test_bicubic_keeps_constants_and_shows_grey():
    grey = torch.full((2, 1, 16, 16), 0.25)
    found = bicubic(grey, torch.zeros(2, 3, 64, 64), torch.zeros(2, dtype=torch.int64))
    torch.testing.assert_close(found, torch.full((2, 3, 64, 64), 0.25))


def test_each_frame_is_drawn_after_the_one_before_it():
    """What is drawn is fed back as shown: rounded to 256 levels and limited."""
    clips = UnseenClips.of(ramps(), num_photos=35, num_frames=3)
    seen = []

    def draw(grey, previous, digits):
        seen.append((grey, previous, digits))
        return previous + 0.7003

    found = drawn(clips, draw)
    assert found.shape == clips.frames_BTCHW.shape == (35, 3, 3, 64, 64)
    assert not seen[0][1].any()
    first = as_shown(torch.tensor(0.7003))
    assert abs(float(first) - 0.7003) <= 1 / 255
    assert (found[:, 0] == first).all()
    assert (found[:, 1] == 1).all()
    assert torch.equal(seen[1][1], found[:32, 0])
    assert torch.equal(seen[2][0], camera_frames(clips.frames_BTCHW[:32, 2]))
    assert torch.equal(torch.cat([seen[0][2], seen[3][2]]), clips.digits_B)


def test_true_frames_are_perfect_but_for_the_classifier():
    clips = UnseenClips.of(ramps(), num_photos=20, num_frames=2)
    found = measured(clips.frames_BTCHW, clips, FirstPixel())
    assert (found.ssim, found.sharpness) == (1.0, 1.0)
    assert found.psnr_db == float("inf")
    assert found.accuracy == pytest.approx(0.1)  # it always says 3


class FirstPixel(nn.Module):
    def forward(self, frames):
        logits = torch.zeros(len(frames), 10)
        logits[:, 3] = 1
        return logits


def test_classifier_is_small_and_loads_what_was_saved(tmp_path):
    with pytest.raises(TargetError, match="train it with"):
        load_classifier(tmp_path)
    torch.manual_seed(0)
    model = new_classifier().eval()
    assert 200_000 < sum(p.numel() for p in model.parameters()) < 500_000
    directory = tmp_path / "signs-classifier"
    directory.mkdir()
    save_weights(model.state_dict(), directory)
    assert (directory / "model.safetensors").stat().st_size < 1_000_000
    loaded = load_classifier(tmp_path)
    truth = noisy(frames(70), 0.3)
    digits = loaded(truth).argmax(1)
    assert is_recognised(loaded, truth, digits).all()
    assert not is_recognised(loaded, truth, (digits + 1) % 10).any()
