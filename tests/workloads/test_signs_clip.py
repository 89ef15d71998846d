"""Clips of people whom signs-stream has not seen: whose they are, and what the classifier says of them."""

from pathlib import Path

import pytest
import torch

from whet.errors import OptionError
from whet.tuner.streams.clips import clips_of_signs
from whet.workloads.signs_clip import recognised, sign_clips
from whet.workloads.signs_data import read_photos, split_photos

ARCHIVE = Path(__file__).parents[3] / "shared" / "data" / "images" / "sign_digits.tar"
needs_data = pytest.mark.skipif(not ARCHIVE.is_file(), reason=f"{ARCHIVE} is not there")


@pytest.mark.parametrize("bad", [{"split": "all"}, {"num_clips": 0}, {"num_frames": 0}])
def test_wrong_numbers_and_splits_are_refused_before_anything_is_read(bad):
    options = {"archive": Path("nowhere.tar"), "split": "test", "num_clips": 1, "num_frames": 1, **bad}
    with pytest.raises(OptionError):
        sign_clips(**options)


@pytest.mark.realdata
@needs_data
def test_clips_show_people_of_their_split_alone():
    clips = sign_clips(ARCHIVE, "test", 12, 3)
    assert len(clips) == 12 and all(clip.frames_TCHW.shape == (3, 3, 64, 64) for clip in clips)
    assert len({clip.digit for clip in clips}) > 5
    assert all(float(clip.frames_TCHW.min()) >= 0 and float(clip.frames_TCHW.max()) <= 1 for clip in clips)
    again = sign_clips(ARCHIVE, "test", 12, 3)
    assert all(torch.equal(a.frames_TCHW, b.frames_TCHW) for a, b in zip(clips, again, strict=True))
    parts = split_photos(read_photos(ARCHIVE))
    people = [set(parts[name].people_N.tolist()) for name in ("train", "validation", "test")]
    assert not people[0] & people[1] and not people[0] & people[2] and not people[1] & people[2]


@pytest.mark.realdata
@needs_data
def test_the_classifier_recognises_most_true_frames_and_no_noise():
    clips = sign_clips(ARCHIVE, "test", 40, 1)
    right = [recognised(list(clip.frames_TCHW), clip.digit)[0] for clip in clips]
    assert sum(right) / len(right) > 0.7
    wrong = [recognised(list(clip.frames_TCHW), (clip.digit + 1) % 10)[0] for clip in clips]
    assert sum(wrong) / len(wrong) < 0.2


@pytest.mark.realdata
@needs_data
def test_the_search_and_its_report_see_different_people():
    clips = clips_of_signs(ARCHIVE)
    assert clips.chosen_on and clips.reported_on
    for clip in (*clips.chosen_on, *clips.reported_on):
        assert clip.truth is not None and clip.judge is not None and clip.prompt in set("0123456789")
        assert set(clip.judge(clip.truth)) <= {0.0, 1.0}
