"""Models of diffusers' directories run as diffusers' own loop runs them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import diffusers, embeddings_file, latent_pipeline, pixel_unet

from whet.errors import OptionError, TargetError
from whet.models.diffusion.diffusers_frames import DiffusersFrames
from whet.models.diffusion.directory import SchedulerConfig, is_diffusers_directory, read_parts
from whet.models.diffusion.few_steps import few_steps
from whet.models.diffusion.guidance import Guidance
from whet.models.diffusion.pipeline import DiffusionStep
from whet.models.diffusion.prompts import read_prompt

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    return pixel_unet(tmp_path_factory.mktemp("pixels"))


@pytest.fixture(scope="module", params=["AutoencoderTiny", "AutoencoderKL"])
def latents(request, tmp_path_factory):
    return latent_pipeline(tmp_path_factory.mktemp("latents"), request.param)


@pytest.fixture
def copy(pixels, tmp_path):
    for file in pixels.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def by_diffusers(directory, frame, embeds, num_steps, noise, monkeypatch):
    """Run one frame through diffusers' models and its LCMScheduler, in its own loop, with the same noise."""
    package = diffusers()
    unet = package.UNet2DConditionModel.from_pretrained(directory / "unet").eval()
    name = json.loads((directory / "vae" / "config.json").read_text())["_class_name"]
    vae = getattr(package, name).from_pretrained(directory / "vae").eval()
    scheduler = package.LCMScheduler.from_pretrained(directory / "scheduler")
    scheduler.set_timesteps(num_steps, strength=0.5)
    drawn = iter(noise[:, 1])
    monkeypatch.setattr(package.schedulers.scheduling_lcm, "randn_tensor", lambda *_, **__: next(drawn)[None])
    encoded = vae.encode(frame[None] * 2 - 1)
    z = (encoded.latents if hasattr(encoded, "latents") else encoded.latent_dist.mode()) * vae.config.scaling_factor
    sample = scheduler.add_noise(z, noise[:1, 0], scheduler.timesteps[:1])
    for t in scheduler.timesteps:
        sample = scheduler.step(unet(sample, t, encoder_hidden_states=embeds).sample, t, sample)[0]
    return (vae.decode(sample / vae.config.scaling_factor).sample[0] / 2 + 0.5).clamp(0, 1)


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_a_latent_pipeline_gives_what_diffusers_loop_gives(latents, tmp_path, num_steps, monkeypatch):
    parts, prompt = read_parts(latents), read_prompt(embeddings_file(tmp_path / "p.safetensors"))
    model = DiffusersFrames(parts, prompt, (32, 32))
    stepper = DiffusionStep(model, few_steps("lcm", model.schedule, model.prediction, 0.5), num_steps)
    frames = [torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    with torch.inference_mode():
        answers = [stepper(frame) for frame in frames]
        while stepper.in_flight:
            answers.append(stepper.advance())
        noise = torch.randn(num_steps, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        answers = [answer for answer in answers if answer is not None]
        assert len(answers) == 3
        for frame, answer in zip(frames, answers, strict=True):
            expected = by_diffusers(latents, frame, prompt.embeddings, num_steps, noise, monkeypatch)
            torch.testing.assert_close(answer, expected, rtol=0, atol=2e-4)


def test_pixels_need_no_prompt_and_guidance_needs_a_negative_one(pixels, latents, tmp_path):
    model = DiffusersFrames(read_parts(pixels), None, (16, 24))
    assert model.scales == (1.0, 0.75, 0.5) and not model.has_null
    stepper = DiffusionStep(model, few_steps("ddim", model.schedule, model.prediction, 0.5), 2, is_rolling=False)
    with torch.inference_mode():
        assert stepper(torch.rand(3, 16, 24)).shape == (3, 16, 24)
    prompt = read_prompt(embeddings_file(tmp_path / "p.safetensors", negative=False))
    assert not DiffusersFrames(read_parts(latents), prompt, (32, 32)).has_null


def test_full_guidance_takes_the_negative_prompt(latents, tmp_path):
    prompt = read_prompt(embeddings_file(tmp_path / "p.safetensors"))
    model = DiffusersFrames(read_parts(latents), prompt, (32, 32))
    sample, times = torch.randn(1, 4, 8, 8), torch.tensor([400])
    with torch.inference_mode():
        rows = model.predict(sample.expand(2, -1, -1, -1), times.expand(2), {}, torch.tensor([False, True]))
        model.prompt = read_prompt(embeddings_file(tmp_path / "p.safetensors"))
        with_prompt = model._unet(sample, times, encoder_hidden_states=prompt.embeddings).sample
        without = model._unet(sample, times, encoder_hidden_states=prompt.negative).sample
    torch.testing.assert_close(rows, torch.cat([with_prompt, without]), rtol=0, atol=1e-5)
    assert Guidance("full", 2.0).combined(with_prompt, without).allclose(2 * with_prompt - without, atol=1e-5)


def test_what_a_directory_is(pixels, latents, tmp_path):
    assert is_diffusers_directory(pixels) and is_diffusers_directory(latents)
    assert not is_diffusers_directory(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert not is_diffusers_directory(tmp_path)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"_class_name": "UNet3DModel"}, "holds no diffusion model"),
        ({"class_embed_type": "timestep"}, "needs class_embed_type"),
        ({"num_class_embeds": 10}, "needs num_class_embeds"),
        ({"block_out_channels": [32, 128]}, "cannot load|lacks"),
    ],
)
def test_other_models_are_refused(copy, values, said):
    change(copy / "config.json", **values)
    with pytest.raises(TargetError, match=said):
        read_parts(copy)


def test_missing_and_damaged_weights_are_refused(copy):
    weights = copy / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    name = sorted(tensors)[3]
    save_file({key: value for key, value in tensors.items() if key != name}, weights, metadata={"format": "pt"})
    with pytest.raises(TargetError, match=f"lacks 1 of the model's weights, such as {name}"):
        read_parts(copy)
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(TargetError, match="diffusers cannot load"):
        read_parts(copy)
    weights.rename(copy / "diffusion_pytorch_model.bin")
    with pytest.raises(TargetError, match="has no weights as safetensors"):
        read_parts(copy)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prediction_type": "flow_prediction"}, "predicts a flow"),
        ({"beta_schedule": "cubic"}, "scheduler_config.json cannot be used: beta_schedule"),
        ({"beta_start": -1}, "beta_start"),
        ({"thresholding": True}, "thresholding"),
    ],
)
def test_unknown_schedulers_are_refused(copy, values, said):
    (copy / "scheduler_config.json").write_text(json.dumps({"_class_name": "DDIMScheduler", **values}))
    with pytest.raises(TargetError, match=said):
        read_parts(copy)


def test_a_schedulers_settings_are_those_of_diffusers(copy):
    package = diffusers()
    for values in (
        {"beta_schedule": "linear"},
        {"beta_schedule": "scaled_linear", "beta_start": 0.001, "beta_end": 0.011},
        {"beta_schedule": "squaredcos_cap_v2", "num_train_timesteps": 500},
        {"beta_schedule": "scaled_linear", "rescale_betas_zero_snr": True, "prediction_type": "v_prediction"},
        {"trained_betas": [0.01, 0.02, 0.03, 0.2]},
    ):
        (copy / "scheduler_config.json").write_text(json.dumps({"_class_name": "DDIMScheduler", **values}))
        ours = read_parts(copy).scheduler.schedule().alphas_cumprod
        theirs = package.DDIMScheduler.from_pretrained(copy).alphas_cumprod
        torch.testing.assert_close(ours.float(), theirs, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "sampler", "is_latent", "limit"),
    [
        ({"_class_name": "DDIMScheduler"}, "ddim", False, 1.0),
        ({"_class_name": "DDIMScheduler", "clip_sample": False}, "ddim", False, None),
        ({"_class_name": "DDIMScheduler", "clip_sample_range": 2.5}, "ddim", True, 2.5),
        ({"_class_name": "LCMScheduler"}, "lcm", True, None),
        ({"_class_name": "LCMScheduler", "clip_sample": True}, "lcm", True, 1.0),
        ({"_class_name": "DDIMScheduler"}, "euler", False, None),
        ({}, "ddim", False, 1.0),
        ({}, "ddim", True, None),
    ],
)
def test_clean_samples_are_clipped_where_diffusers_clips_them(settings, sampler, is_latent, limit):
    assert SchedulerConfig.model_validate(settings).clip(sampler, is_latent=is_latent) == limit


@pytest.mark.parametrize("settings", [{}, {"clip_sample": False}, {"clip_sample_range": 0.6}])
def test_ddim_on_pixels_is_that_of_diffusers(copy, settings):
    (copy / "scheduler_config.json").write_text(json.dumps({"_class_name": "DDIMScheduler", **settings}))
    parts, frame = read_parts(copy), torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(3))
    model = DiffusersFrames(parts, None, (16, 16))
    steps_of = few_steps("ddim", model.schedule, model.prediction, 0.5, parts.scheduler.clip("ddim", is_latent=False))
    stepper = DiffusionStep(model, steps_of, 4, is_rolling=False)
    scheduler = diffusers().DDIMScheduler.from_pretrained(copy, set_alpha_to_one=True)
    scheduler.set_timesteps(8)  # of 1,000; those of 4 steps from 500 down are asked for by hand
    noise = torch.randn(4, 2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    timesteps = steps_of(4).timesteps.tolist()
    with torch.inference_mode():
        sample = scheduler.add_noise(frame[None] * 2 - 1, noise[:1, 0], torch.tensor(timesteps[:1]))
        for t in timesteps:
            scheduler.num_inference_steps = 8  # a step goes 125 timesteps down, as those of the sampler do
            sample = scheduler.step(parts.unet(sample, t).sample, t, sample)[0]
        expected = (sample[0] / 2 + 0.5).clamp(0, 1)
        torch.testing.assert_close(stepper(frame), expected, rtol=0, atol=2e-4)


def test_sizes_prompts_and_channels_that_do_not_fit_are_refused(pixels, latents, tmp_path):
    prompt = read_prompt(embeddings_file(tmp_path / "p.safetensors"))
    with pytest.raises(OptionError, match="multiples of 2; got 15 x 16; the nearest is --size 16x16"):
        DiffusersFrames(read_parts(pixels), None, (15, 16))
    with pytest.raises(OptionError, match="multiples of 8"):
        DiffusersFrames(read_parts(latents), prompt, (36, 32))
    with pytest.raises(TargetError, match="takes no prompt"):
        DiffusersFrames(read_parts(pixels), prompt, (16, 16))
    with pytest.raises(TargetError, match="give --prompt or --prompt-embeds"):
        DiffusersFrames(read_parts(latents), None, (32, 32))
    with pytest.raises(TargetError, match="have 8 numbers a token; the U-Net takes 16"):
        DiffusersFrames(
            read_parts(latents), read_prompt(embeddings_file(tmp_path / "q.safetensors", width=8)), (32, 32)
        )


def test_wrong_embeddings_are_refused(tmp_path):
    path = tmp_path / "p.safetensors"
    with pytest.raises(TargetError, match="no readable safetensors"):
        read_prompt(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(TargetError, match="no readable safetensors"):
        read_prompt(path)
    for tensors, said in (
        ({"embeds": torch.zeros(1, 2, 3)}, "it must hold prompt_embeds"),
        ({"prompt_embeds": torch.zeros(2, 3)}, r"of one shape \[1, T, D\]"),
        ({"prompt_embeds": torch.zeros(1, 2, 3), "negative_prompt_embeds": torch.zeros(1, 3, 3)}, "of one shape"),
        ({"prompt_embeds": torch.full((1, 2, 3), torch.nan)}, "finite"),
    ):
        save_file(tensors, path)
        with pytest.raises(TargetError, match=said):
            read_prompt(path)


@pytest.fixture(scope="module")
def distilled(tmp_path_factory):
    """Write a pipeline whose U-Net takes the guidance weight as an embedding."""
    return latent_pipeline(tmp_path_factory.mktemp("distilled"), time_cond_proj_dim=17)


def by_the_lcm_pipeline(directory, frame, embeds, weight, noise, monkeypatch):
    """Run one frame through diffusers' LatentConsistencyModelImg2ImgPipeline, with the same noise."""
    package = diffusers()
    module = package.pipelines.latent_consistency_models.pipeline_latent_consistency_img2img
    pipeline = module.LatentConsistencyModelImg2ImgPipeline(
        vae=package.AutoencoderTiny.from_pretrained(directory / "vae").eval(),
        unet=package.UNet2DConditionModel.from_pretrained(directory / "unet").eval(),
        scheduler=package.LCMScheduler.from_pretrained(directory / "scheduler"),
        **dict.fromkeys(("text_encoder", "tokenizer", "safety_checker", "feature_extractor")),
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    drawn = iter(noise[:, 1])
    monkeypatch.setattr(package.schedulers.scheduling_lcm, "randn_tensor", lambda *_, **__: next(drawn)[None])
    monkeypatch.setattr(module, "randn_tensor", lambda *_, **__: noise[:1, 0])
    options = {"image": frame[None], "prompt_embeds": embeds, "num_inference_steps": len(noise), "strength": 0.5}
    return pipeline(**options, guidance_scale=weight, output_type="pt").images[0]


@pytest.mark.parametrize("weight", [1.0, 2.5, 8.5])
def test_embedded_guidance_is_what_diffusers_pipeline_tells_the_unet(distilled, tmp_path, weight, monkeypatch):
    prompt = read_prompt(embeddings_file(tmp_path / "p.safetensors"))
    model = DiffusersFrames(read_parts(distilled), prompt, (32, 32))
    guidance = Guidance("embedded", weight) if weight != 1 else Guidance()
    stepper = DiffusionStep(model, few_steps("lcm", model.schedule, model.prediction, 0.5), 2, guidance=guidance)
    frame = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(3))
    noise = torch.randn(2, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        stepper(frame)
        answer = stepper.advance()
        wanted = by_the_lcm_pipeline(distilled, frame, prompt.embeddings, weight, noise, monkeypatch)
        torch.testing.assert_close(answer, wanted, rtol=0, atol=2e-5)
        stepper.guidance = Guidance("embedded", 4.0)  # it may change while the stream runs
        stepper.reset()
        stepper(frame)
        assert (stepper.advance() - wanted).abs().max() > 1e-3


def test_embedded_guidance_is_refused_where_the_unet_was_not_distilled(latents, tmp_path):
    model = DiffusersFrames(read_parts(latents), read_prompt(embeddings_file(tmp_path / "p.safetensors")), (32, 32))
    steps = few_steps("lcm", model.schedule, model.prediction, 0.5)
    with pytest.raises(
        OptionError, match=r"distilled with guidance \(time_cond_proj_dim in their config\), and this one"
    ):
        DiffusionStep(model, steps, 2, guidance=Guidance("embedded", 8.5))


@pytest.mark.parametrize(
    ("settings", "unread"),
    [
        ({"original_inference_steps": 50, "timestep_scaling": 10.0, "set_alpha_to_one": True}, {}),
        ({"original_inference_steps": 100}, {"original_inference_steps": 100}),
        (
            {"_class_name": "DPMSolverMultistepScheduler", "use_karras_sigmas": True, "solver_order": 3,
             "algorithm_type": "sde-dpmsolver++", "solver_type": "midpoint", "lower_order_final": True},
            {"use_karras_sigmas": True, "solver_order": 3, "algorithm_type": "sde-dpmsolver++"},
        ),
        (
            {"_class_name": "NobodysScheduler", "shift": 3.0, "use_karras_sigmas": False, "sigma_min": None},
            {"shift": 3.0},
        ),
    ],
)  # fmt: skip
def test_settings_that_are_not_read_are_known(tmp_path, settings, unread):
    assert read_parts(latent_pipeline(tmp_path, scheduler=settings)).unread == unread


def test_settings_that_are_left_out_are_those_of_the_scheduler(pixels, copy):
    """LCM's noise begins at 0.00085, and DDPM's at 0.0001."""
    (copy / "scheduler_config.json").write_text('{"_class_name": "LCMScheduler"}')
    found = read_parts(copy).scheduler
    assert (found.beta_start, found.beta_schedule, found.clip_sample) == (0.00085, "scaled_linear", False)
