"""What a stream runs is opened from directories and functions, with their own sizes, samplers and prompts."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import embeddings_file, latent_pipeline, pixel_unet

from whet.errors import OptionError, TargetError
from whet.models.diffusion.guidance import Guidance
from whet.models.diffusion.unet import MODEL_TYPE, FrameUNet, UNetConfig
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.targets import ModelOptions, open_target

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    return pixel_unet(tmp_path_factory.mktemp("pixels"), side=16)


@pytest.fixture(scope="module")
def latents(tmp_path_factory):
    return latent_pipeline(tmp_path_factory.mktemp("latents"))


@pytest.fixture(scope="module")
def frame_unet(tmp_path_factory):
    directory = tmp_path_factory.mktemp("frame-unet")
    torch.manual_seed(0)
    config = {"widths": [16, 24], "embedding": 32}
    save_file(FrameUNet(UNetConfig(widths=(16, 24), embedding=32)).state_dict(), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"model_type": MODEL_TYPE, **config}))
    return directory


def test_a_pixel_unet_has_its_own_size_and_the_schedulers_sampler(pixels):
    opened = open_target(str(pixels), ModelOptions())
    assert (opened.size, opened.sampler, opened.model.steps) == ((16, 16), "ddim", 4)
    assert opened.prepare_prompt is None
    answers = list(Stream(str(pixels), "synthetic:3", StreamOptions(steps=2)))
    assert [answer.image.shape for answer in answers] == [(16, 16, 3)] * 3


def test_a_latent_pipeline_counts_its_autoencoders_halvings(latents, tmp_path):
    prompt = embeddings_file(tmp_path / "p.safetensors")
    opened = open_target(str(latents), ModelOptions(prompt_embeds=prompt))
    assert (opened.size, opened.sampler) == ((32, 32), "lcm")
    with pytest.raises(TargetError, match="give --prompt or --prompt-embeds"):
        open_target(str(latents), ModelOptions())
    with pytest.raises(TargetError, match="has no tokenizer and text_encoder"):
        open_target(str(latents), ModelOptions(prompt="a cat"))
    with pytest.raises(OptionError, match="not both"):
        open_target(str(latents), ModelOptions(prompt="a cat", prompt_embeds=prompt))
    with pytest.raises(OptionError, match="goes with --prompt"):
        open_target(str(latents), ModelOptions(negative="a dog"))


def test_the_report_names_what_is_not_done_as_the_directory_says(tmp_path):
    settings = {"_class_name": "UniPCMultistepScheduler", "use_karras_sigmas": True, "solver_order": 2}
    directory = latent_pipeline(tmp_path / "model", scheduler=settings, time_cond_proj_dim=16)
    embeds = embeddings_file(tmp_path / "p.safetensors")
    stream = Stream(str(directory), "synthetic:2", StreamOptions(steps=1, prompt_embeds=embeds))
    list(stream)
    scheduler, unread, weight = stream.report().notes
    assert scheduler == "whet has no sampler for UniPCMultistepScheduler; the steps are those of ddim"
    assert "does not read: use_karras_sigmas = true; the steps" in unread
    assert "--guidance embedded:8.5" in weight
    told = ModelOptions(prompt_embeds=embeds, sampler="lcm", guidance=Guidance("embedded", 8.5))
    assert [note for note in open_target(str(directory), told).notes if "karras" not in note] == []


def test_guidance_that_does_not_fit_is_refused_and_the_stream_goes_on(pixels):
    stream = Stream(str(pixels), "synthetic:4", StreamOptions(steps=1))
    answers = iter(stream)
    next(answers)
    with pytest.raises(OptionError, match="choose self or none"):
        stream.change_guidance(Guidance("full", 2.0))
    stream.change_guidance(Guidance("self", 1.5))
    assert len(list(answers)) == 3
    assert stream.opened.model.step.guidance == Guidance("self", 1.5)


def test_whets_own_unet_takes_a_digit_and_feeds_back(frame_unet):
    stream = Stream(str(frame_unet), "synthetic:4", StreamOptions(steps=1, prompt="3"))
    answers = iter(stream)
    next(answers)
    model = stream.opened.model.step._model
    assert model.digit == 3
    with pytest.raises(OptionError, match="a digit from 0 to 9"):
        stream.change_prompt("12")
    with pytest.raises(OptionError, match="takes a digit, as 3, or nothing"):
        stream.change_prompt("cat")
    stream.change_prompt("7")
    assert len(list(answers)) == 3
    assert model.digit == 7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strength": 0.5}, "takes no strength"),
        ({"size": (32, 32)}, "leave --size out"),
        ({"prompt": "x"}, "takes a digit"),
        ({"steps": 60}, "has at most 50 steps"),
    ],
)
def test_options_that_do_not_fit_whets_own_unet_are_refused(frame_unet, options, said):
    with pytest.raises(OptionError, match=said):
        open_target(str(frame_unet), ModelOptions(**options))


def test_other_directories_are_refused(tmp_path):
    with pytest.raises(TargetError, match="holds no diffusion model"):
        open_target(str(tmp_path), ModelOptions())
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(TargetError, match="holds no diffusion model"):
        open_target(str(tmp_path), ModelOptions())
