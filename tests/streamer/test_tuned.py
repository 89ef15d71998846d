"""A tuned stream is one directory: it is read with its settings and artefacts, and nothing else is believed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from written_unets import write_unet

import whet
from whet.core.artefact import load
from whet.core.workload import examine
from whet.errors import OptionError, TargetError
from whet.models.diffusion.guidance import Guidance
from whet.models.diffusion.unet import UNetConfig, load_unet
from whet.models.diffusion.unet_frames import UNetFrames
from whet.streamer.module_swaps import Replacements, shapes_of
from whet.streamer.sources.memory import MemoryClip
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.target_name import names_a_stream
from whet.streamer.targets import Opened, open_target
from whet.streamer.tuned import FILE, TunedModel, TunedStream, read_tuned, settings_of, threads_of_codec, write_tuned
from whet.techniques.technique import Candidate

CONFIG = UNetConfig(frame_size=16, grey_size=8, widths=(8, 8), embedding=16)
OPTIONS = StreamOptions(steps=2, sampler="tcd", rolling=False, guidance=Guidance("self", 1.5, 0.9), threads=1)


@pytest.fixture(scope="module")
def unet(tmp_path_factory) -> Path:
    return write_unet(tmp_path_factory.mktemp("unet") / "unet", CONFIG)


def frames(count: int):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (16, 16, 3), generator=generator, dtype=torch.uint8).numpy() for _ in range(count)]


def images(target: str | Opened, options: StreamOptions) -> list:
    with Stream(target, lambda size: MemoryClip("clip", frames(5)), options) as stream:
        return [answer.image.tolist() for answer in stream]


def written(directory: Path, target: Path, options: StreamOptions, models=None) -> Path:
    directory.mkdir(exist_ok=True)
    settings = {**settings_of(options), "codec_threads": 2}
    write_tuned(directory, TunedStream(target=str(target), settings=settings, models=models or {}))
    return directory


def test_a_tuned_stream_runs_with_the_settings_that_were_found(unet, tmp_path):
    tuned = written(tmp_path / "tuned", unet, OPTIONS)
    assert names_a_stream(str(tuned))
    opened = open_target(str(tuned), StreamOptions())
    assert (opened.model.steps, opened.sampler, opened.name) == (2, "tcd", "tuned")
    assert images(str(tuned), StreamOptions(seed=3)) == images(str(unet), StreamOptions(**{**vars(OPTIONS), "seed": 3}))
    assert images(str(tuned), StreamOptions(seed=3)) != images(str(unet), StreamOptions(seed=3))
    assert threads_of_codec(str(tuned), None) == 2


def test_an_artefact_stands_for_the_model_of_one_row(unet, tmp_path):
    model = UNetFrames(load_unet(unet)).call_modules["U-Net"]
    call = (
        torch.randn(1, 3, 16, 16),
        torch.tensor([500]),
        torch.rand(1, 1, 8, 8),
        torch.rand(1, 3, 16, 16),
        torch.tensor([3]),
    )
    examined = examine(whet.Workload(model=model, inputs=[call]))
    tuned = tmp_path / "tuned"
    Candidate.original(examined).save(tuned / "models" / "u-net")
    shapes = shapes_of(call, {})
    one_by_one = StreamOptions(steps=2, rolling=False)
    written(tuned, unet, one_by_one, {"U-Net": TunedModel(directory="models/u-net", shapes=shapes)})
    # To the bit it is the stream with the artefact in the model's place. An exported program may round other sums than
    # the model, so that a value between two levels becomes either.
    artefact, found = load(tuned / "models" / "u-net"), images(str(tuned), StreamOptions())
    opened = open_target(str(unet), one_by_one)
    Replacements(opened.model.step).replace("U-Net", artefact, shapes)
    assert found == images(opened, one_by_one)
    assert np.abs(np.array(found) - np.array(images(str(unet), one_by_one))).max() <= 1
    # The artefact's own weights are used: without them, the stream cannot be opened.
    assert artefact(*call).shape == (1, 3, 16, 16)
    # A rolling batch of two has other shapes: the model itself runs.
    rolling = StreamOptions(steps=2, rolling=True)
    written(tuned, unet, rolling, {"U-Net": TunedModel(directory="models/u-net", shapes=shapes)})
    assert images(str(tuned), StreamOptions()) == images(str(unet), rolling)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (StreamOptions(steps=1), "--steps"),
        (StreamOptions(rolling=False), "--no-rolling"),
        (StreamOptions(stillness=0.9), "--skip-still"),
        (StreamOptions(threads=2), "--threads"),
        (StreamOptions(guidance=Guidance("full", 2.0)), "--guidance"),
    ],
)
def test_what_tuning_fixed_cannot_be_given_again(unet, tmp_path, options, named):
    tuned = written(tmp_path / "tuned", unet, OPTIONS)
    with pytest.raises(OptionError, match=f"fixes {named}; leave it out, or stream {unet} itself"):
        open_target(str(tuned), options)
    with pytest.raises(OptionError, match="--codec-threads"):
        threads_of_codec(str(tuned), 1)


def test_the_prompt_stays_free(unet, tmp_path):
    tuned = written(tmp_path / "tuned", unet, StreamOptions(steps=1))
    assert images(str(tuned), StreamOptions(prompt="3")) == images(str(unet), StreamOptions(steps=1, prompt="3"))


def damaged(name: str, value) -> str:
    whole = TunedStream(target="x", settings={}).model_dump(mode="json")
    return json.dumps({**whole, name: value})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is damaged"),
        (damaged("format", 2), "its format is 2, and this whet reads 1"),
        (damaged("settings", {"colour": 1}), "settings that this whet does not know: colour"),
        (damaged("libraries", ["x.so"]), "libraries: Extra inputs are not permitted"),
        (
            damaged("models", {"U-Net": {"directory": "../elsewhere", "shapes": []}}),
            "an artefact lies outside of the directory",
        ),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(TargetError, match=said) as caught:
        read_tuned(tmp_path)
    assert "\n" not in str(caught.value) and "tune the stream again" in str(caught.value)


def test_settings_of_wrong_types_are_refused(unet, tmp_path):
    tuned = written(tmp_path / "tuned", unet, OPTIONS)
    found = json.loads((tuned / FILE).read_text(encoding="utf-8"))
    found["settings"]["guidance"] = {"strange": 1}
    (tuned / FILE).write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(TargetError, match="is damaged"):
        open_target(str(tuned), StreamOptions())


def test_a_missing_artefact_is_named(unet, tmp_path):
    shapes = (("0", (1, 3, 16, 16)),)
    model = TunedModel(directory="models/u-net", shapes=shapes)
    tuned = written(tmp_path / "tuned", unet, StreamOptions(steps=1), {"U-Net": model})
    with pytest.raises(TargetError, match="models/u-net cannot be used here"):
        open_target(str(tuned), StreamOptions())
