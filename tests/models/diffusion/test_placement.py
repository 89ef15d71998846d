"""A diffusion model runs where and in the format that was asked for, or one line says why it cannot."""

import dataclasses
import importlib.util

import pytest
import torch
from recorded_graphs import FakeCuda
from tiny_models import embeddings_file, latent_pipeline

from whet.core.workload import StreamWorkload
from whet.errors import OptionError
from whet.measure.machine import describe
from whet.models.diffusion import placement
from whet.models.diffusion.directory import read_parts
from whet.models.diffusion.placement import Placement
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.targets import ModelOptions, open_target

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

CPU = torch.device("cpu")


@pytest.fixture
def latents(tmp_path):
    if importlib.util.find_spec("diffusers") is None:
        pytest.skip("diffusers is not installed")
    directory = latent_pipeline(tmp_path / "latents", "AutoencoderKL")
    return directory, embeddings_file(tmp_path / "prompt.safetensors")


@pytest.fixture
def machine(monkeypatch):
    """Return what sets the instruction sets that whet finds."""

    def become(*isa):
        monkeypatch.setattr(placement, "describe", lambda: dataclasses.replace(describe(), chip="Chip 1", isa=isa))

    return become


@pytest.fixture
def gpus(monkeypatch):
    """Return what sets the number of GPUs that PyTorch finds."""

    def become(number):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    return become


def test_without_options_a_model_runs_on_the_cpu_in_float32():
    assert Placement.of() == Placement(CPU, torch.float32, False)
    assert Placement.of(graphs=False) == Placement(CPU, torch.float32, False)


def test_a_gpu_runs_graphs_unless_told_otherwise(gpus):
    gpus(2)
    assert Placement.of(device="cuda") == Placement(torch.device("cuda", 0), torch.float32, True)
    assert Placement.of(device="cuda:1", graphs=False).device == torch.device("cuda", 1)
    assert not Placement.of(device="cuda:1", graphs=False).graphs
    with pytest.raises(OptionError, match="finds 2 GPUs here, the last one is cuda:1"):
        Placement.of(device="cuda:2")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cuda"}, "--device cuda needs a GPU that torch can use"),
        ({"device": "cuda:1"}, "--device cuda:1 needs a GPU that torch can use"),
        ({"device": "tpu"}, "--device is cpu, cuda or cuda:NUMBER; got 'tpu'"),
        ({"device": "cuda:-1"}, "--device is cpu, cuda or cuda:NUMBER"),
        ({"dtype": "int8"}, "--dtype is one of float32, bf16, fp16, fp8; got 'int8'"),
        ({"dtype": "bf16"}, "--dtype bf16: Chip 1 does not multiply it natively, and would emulate it; use float32"),
        ({"dtype": "fp16"}, "--dtype fp16: Chip 1 does not multiply it natively"),
        ({"graphs": True}, "--graphs needs a GPU"),
    ],
)
def test_what_this_computer_lacks_is_refused_before_a_model_is_read(gpus, machine, tmp_path, options, said):
    gpus(0)
    machine()
    (tmp_path / "model_index.json").write_text("{}")  # reading it would fail with another message
    with pytest.raises(OptionError, match=said) as refused:
        open_target(str(tmp_path), ModelOptions(**options))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"dtype": "float32"}, {"graphs": True}, {"graphs": False}])
def test_a_users_own_step_takes_no_place(options):
    workload = StreamWorkload(open=lambda: lambda frame: frame, frames=[torch.zeros(3, 8, 8)], name="own")
    name = "--no-graphs" if options == {"graphs": False} else f"--{next(iter(options))}"
    with pytest.raises(OptionError, match=f"own is a function of your own, which takes no {name}"):
        open_target(workload, ModelOptions(**options))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_models_and_prompts_have_the_format_and_samples_stay_float32(latents, machine, name):
    machine("avx512_bf16", "avx512_fp16")
    directory, prompt = latents
    dtype = placement.DTYPES[name]
    wide = open_target(str(directory), ModelOptions(prompt_embeds=prompt, steps=2))
    opened = open_target(str(directory), ModelOptions(prompt_embeds=prompt, steps=2, dtype=name))
    step = opened.model.step
    frames = step._model
    assert frames.prompt.embeddings.dtype == frames.prompt.negative.dtype == dtype
    assert {p.dtype for p in frames.modules["unet"].parameters()} == {dtype}
    # an AutoencoderKL says force_upcast unless told otherwise: in float16 it may overflow
    stays = torch.float32 if name == "fp16" else dtype
    assert {p.dtype for p in frames.modules["autoencoder"].parameters()} == {stays}
    frame = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for _ in range(3):
            answer, expected = opened.model(frame), wide.model(frame)
    assert step._noise.dtype == step._table.rows.signal.dtype == answer.dtype == torch.float32
    assert frames.enter(frame, None).clean.dtype == torch.float32
    error = (answer - expected).abs().max()
    assert 0 < error < 0.05  # frames are from 0 to 1; a format with 8 bits of mantissa rounds by 0.4 %


def test_a_wide_autoencoder_follows_its_settings(latents):
    parts = read_parts(latents[0])
    parts.autoencoder.register_to_config(force_upcast=False)
    Placement(CPU, torch.float16, False).move_parts(parts)
    assert parts.autoencoder.dtype == torch.float16


def test_what_cannot_be_recorded_is_a_note_of_the_report(latents, monkeypatch):
    directory, prompt = latents

    class FailingCuda(FakeCuda):
        def __init__(self, device):
            super().__init__()

        def recording(self, graph):
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(placement, "TorchCuda", FailingCuda)
    monkeypatch.setattr(Placement, "of", classmethod(lambda cls, **options: cls(CPU, torch.float32, True)))
    with Stream(str(directory), "synthetic:4", StreamOptions(prompt_embeds=prompt, steps=2)) as stream:
        assert len(list(stream)) == 4
    notes = stream.report().notes
    assert [note.split(" runs without CUDA graphs")[0] for note in notes] == ["the encoder", "the U-Net", "the decoder"]
    assert stream.report().to_dict()["notes"] == notes


@pytest.mark.gpu
def test_a_stream_runs_on_a_gpu_as_on_the_cpu(gpu, latents, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    directory, prompt = latents
    images = {}
    for device in ("cpu", gpu):
        with Stream(
            str(directory), "synthetic:6", StreamOptions(prompt_embeds=prompt, steps=2, device=device)
        ) as stream:
            images[device] = [answer.image.astype(int) for answer in stream]
        assert stream.report().notes == ()
    for one, other in zip(images["cpu"], images[gpu], strict=True):
        assert abs(one - other).max() <= 2  # of 255
