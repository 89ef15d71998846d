"""Replayed graphs give what the calls themselves give, whatever changes between two calls."""

import pytest
import torch
from recorded_graphs import FakeCuda
from tiny_models import embeddings_file, latent_pipeline

from whet.models.diffusion.diffusers_frames import DiffusersFrames
from whet.models.diffusion.directory import read_parts
from whet.models.diffusion.few_steps import few_steps
from whet.models.diffusion.graphs import Graphs, TorchCuda
from whet.models.diffusion.guidance import KINDS, Guidance
from whet.models.diffusion.pipeline import DiffusionStep
from whet.models.diffusion.prompts import Prompt, read_prompt
from whet.models.diffusion.unet import FrameUNet, UNetConfig
from whet.models.diffusion.unet_frames import UNetFrames

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


def a_unet():
    torch.manual_seed(0)
    unet = FrameUNet(UNetConfig(frame_size=16, grey_size=4, widths=(8, 16), embedding=16, groups=4)).eval()
    with torch.no_grad():
        for parameter in unet.parameters():  # new ones end in zeros, with which nothing shows
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return unet.requires_grad_(False)


@pytest.fixture(scope="module")
def unet():
    return a_unet()


@pytest.fixture(scope="module")
def latents(tmp_path_factory):
    directory = latent_pipeline(tmp_path_factory.mktemp("latents"))
    prompt = read_prompt(embeddings_file(directory / "prompt.safetensors"))
    return read_parts(directory), prompt


def given_frames(num, size=(16, 16), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(3, *size, generator=generator) for _ in range(num)]


def stepper(frames, num_steps, guidance=None, **options):
    steps_of = few_steps("lcm", frames.schedule, frames.prediction, 1.0)
    return DiffusionStep(frames, steps_of, num_steps, guidance=guidance, **options)


def both(make, num_steps, guidance=None, most=16, **options):
    """Return a step that replays and one that does not, and the graphs."""
    graphs = Graphs(FakeCuda(), most)
    replaying = make()
    replaying.wrap(graphs.wrapped)
    return stepper(replaying, num_steps, guidance, **options), stepper(make(), num_steps, guidance, **options), graphs


def same(one, other):
    assert (one is None) == (other is None)
    if one is not None:
        assert torch.isfinite(one).all() or not torch.isfinite(other).all()
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6, equal_nan=True)


def run_to_the_end(one, other, frames):
    with torch.inference_mode():
        for frame in frames:
            same(one(frame), other(frame))
        while other.in_flight:
            same(one.advance(), other.advance())
    assert one.in_flight == 0


@pytest.mark.parametrize("num_steps", [1, 2, 4])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "embedded"])  # that is for distilled U-Nets
def test_whets_own_unet_gives_the_same_frames_while_the_batch_fills_runs_and_drains(unet, kind, num_steps):
    one, other, graphs = both(lambda: UNetFrames(unet, 3), num_steps, Guidance(kind, 1.5, 0.9), feeds_back=True)
    run_to_the_end(one, other, given_frames(7))
    assert graphs.notes == []
    rows = {"full": range(2, 2 * num_steps + 1, 2), "onetime": range(1, num_steps + 2)}
    expected = set(rows.get(kind, range(1, num_steps + 1)))
    if (kind, num_steps) == ("onetime", 1):  # nothing is left in flight, so there is never one row
        expected = {2}
    assert len(graphs) == len(expected)


@pytest.mark.parametrize("num_steps", [1, 2, 4])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "embedded"])  # that is for distilled U-Nets
def test_a_latent_pipeline_gives_the_same_frames(latents, kind, num_steps):
    parts, prompt = latents
    one, other, graphs = both(lambda: DiffusersFrames(parts, prompt, (32, 32)), num_steps, Guidance(kind, 1.5))
    run_to_the_end(one, other, given_frames(num_steps + 2, (32, 32)))
    assert graphs.notes == []
    assert len(graphs) > 2  # the encoder and the decoder have theirs too


def test_a_graph_is_recorded_once_for_its_shapes_and_then_only_replayed(unet):
    one, _, graphs = both(lambda: UNetFrames(unet, 3), 1)
    for frame in given_frames(6):
        one(frame)
    cuda = graphs._cuda
    assert [graph.num_replays for graph in cuda.graphs] == [6]
    assert cuda.num_beside == 1


def test_a_new_digit_reaches_the_graph(unet):
    one, other, graphs = both(lambda: UNetFrames(unet, 3), 2)
    first, second = given_frames(3), given_frames(4, seed=1)
    run_to_the_end(one, other, first)
    before, num_graphs = one(first[0]), len(graphs)
    one.reset()
    for step in (one, other):
        step._model.digit = 7
    run_to_the_end(one, other, second)
    assert before is None
    assert len(graphs) == num_graphs
    assert not torch.equal(stepper(UNetFrames(unet, 3), 1)(second[0]), stepper(UNetFrames(unet, 7), 1)(second[0]))


def test_a_new_prompt_reaches_the_graph_also_with_another_number_of_tokens(latents):
    parts, prompt = latents
    one, other, _ = both(lambda: DiffusersFrames(parts, prompt, (32, 32)), 2, Guidance("full", 2.0))
    frames = given_frames(3, (32, 32))
    run_to_the_end(one, other, frames)
    for tokens in (5, 9):
        new = Prompt(
            3 * torch.randn(1, tokens, 16, generator=torch.Generator().manual_seed(tokens)), torch.zeros(1, tokens, 16)
        )
        for step in (one, other):
            step._model.prompt = new
        run_to_the_end(one, other, frames)
    told, before = (stepper(DiffusersFrames(parts, p, (32, 32)), 1)(frames[0]) for p in (new, prompt))
    assert not torch.allclose(told, before, atol=1e-3)  # so a prompt that did not arrive would show


def test_other_guidance_steps_and_sizes_are_recorded_and_the_oldest_graphs_make_room(latents):
    parts, prompt = latents
    one, other, graphs = both(lambda: DiffusersFrames(parts, prompt, (32, 32)), 2, most=3)
    for size, kind, num_steps in (((32, 32), "none", 2), ((16, 16), "full", 2), ((32, 32), "onetime", 4)):
        for step in (one, other):
            step.guidance = Guidance(kind, 1.5)
            step.change(num_steps)
        run_to_the_end(one, other, given_frames(5, size))
        assert len(graphs) == 3
    cuda = graphs._cuda
    assert cuda.num_waits == len(cuda.graphs) - 3  # each graph that went may have been running


def test_the_graph_that_was_used_last_is_kept():
    graphs = Graphs(FakeCuda(), 2)
    double = graphs.wrapped("double", lambda x: x * 2)
    for num in (1, 2, 1, 3, 1):  # the graph of two rows makes room for that of three
        assert torch.equal(double(torch.full((num,), 4.0)), torch.full((num,), 8.0))
    assert [graph.num_replays for graph in graphs._cuda.graphs] == [3, 1, 1]


def test_a_frame_of_nan_leaves_nothing_in_the_graph(unet):
    one, other, _ = both(lambda: UNetFrames(unet, 3), 2, feeds_back=True)
    frames = given_frames(6)
    frames[2] = torch.full_like(frames[2], torch.nan)
    run_to_the_end(one, other, frames)
    one.reset(), other.reset()
    with torch.inference_mode():
        answers = [one(frame) for frame in given_frames(4)]
    assert all(torch.isfinite(answer).all() for answer in answers[1:])


def test_a_function_that_reads_values_is_called_as_it_is_and_a_note_says_so():
    graphs, calls = Graphs(FakeCuda()), []

    def reading(x):
        calls.append(len(x))
        return x * 2 if x.sum().item() > 0 else -x

    wrapped = graphs.wrapped("U-Net", reading)
    for num in (2, 3):
        assert torch.equal(wrapped(torch.ones(num)), torch.full((num,), 2.0))
        assert torch.equal(wrapped(-torch.ones(num)), torch.ones(num))
    assert graphs.notes == [
        "the U-Net runs without CUDA graphs, as recording failed: a RuntimeError: operation not permitted when stream "
        "is capturing"
    ]
    assert len(graphs) == 0
    assert len(calls) == 3 + 1 + 4  # to warm up, to record, and for the answers


def test_an_error_of_the_model_itself_comes_out():
    def broken(x):
        raise ValueError("no such rows")

    graphs = Graphs(FakeCuda())
    with pytest.raises(ValueError, match="no such rows"):
        graphs.wrapped("U-Net", broken)(torch.ones(1))
    assert graphs.notes == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "embedded"])  # that is for distilled U-Nets
def test_graphs_of_a_gpu_give_the_same_frames(gpu, kind, dtype):
    graphs = Graphs(FakeCuda() if gpu == "cpu" else TorchCuda(torch.device(gpu)))
    unet = a_unet().to(gpu, dtype)
    replaying = UNetFrames(unet, 3)
    replaying.wrap(graphs.wrapped)
    guidance = Guidance(kind, 1.5, 0.9)
    one, other = (stepper(model, 4, guidance, feeds_back=True) for model in (replaying, UNetFrames(unet, 3)))
    atol = 1e-5 if dtype == torch.float32 else 2e-2
    with torch.inference_mode():
        for k, frame in enumerate(given_frames(12)):
            if k == 7:
                replaying.digit = other._model.digit = 5
            if k == 9:
                frame = torch.full_like(frame, torch.nan)
            if k == 10:
                one.reset(), other.reset()
            answers = one(frame.to(gpu)), other(frame.to(gpu))
            assert (answers[0] is None) == (answers[1] is None)
            if answers[0] is not None:
                torch.testing.assert_close(*answers, rtol=0, atol=atol, equal_nan=True)
    assert graphs.notes == []
    assert len(graphs) == 4


@pytest.mark.gpu
def test_a_gpu_that_cannot_record_a_call_still_makes_it(gpu):
    graphs = Graphs(FakeCuda() if gpu == "cpu" else TorchCuda(torch.device(gpu)))
    reading = graphs.wrapped("U-Net", lambda x: x * 2 if x.sum().item() > 0 else -x)
    x = torch.ones(3, device=gpu)
    for _ in range(2):
        assert torch.equal(reading(x), 2 * x)
        assert torch.equal(reading(-x), x)
    double = graphs.wrapped("double", lambda x: x * 2)  # the device records other calls afterwards
    assert torch.equal(double(x), 2 * x)
    assert len(graphs.notes) == len(graphs) == 1
    torch.rand(2, device=gpu)
    if gpu != "cpu":
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
