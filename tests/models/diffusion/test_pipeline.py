"""The rolling batch gives each frame what its steps give when they are computed alone."""

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from whet.errors import OptionError
from whet.models.diffusion.few_steps import SAMPLERS, few_steps
from whet.models.diffusion.frame_diffusion import Entry
from whet.models.diffusion.guidance import Guidance
from whet.models.diffusion.pipeline import DiffusionStep
from whet.models.samplers import Schedule, model_input, noised, step

SIZE = (3, 4, 6)


class ToyModel:
    """Predict from the sample, the timestep and the frame, row by row, so that rows cannot help each other."""

    def __init__(self, prediction: str = "epsilon") -> None:
        self.schedule = Schedule.scaled_linear()
        self.prediction = prediction
        self.channels = 3
        self.scales = (1.0, 0.5)
        self.has_null = True
        self.embedded_weight: float | None = None
        self.num_rows: list[int] = []
        self.previous: list[Tensor | None] = []

    def enter(self, frame: Tensor, previous: Tensor | None) -> Entry:
        self.previous.append(previous)
        return Entry(frame[None] * 2 - 1, {"frame": frame[None]})

    def predict(
        self, sample: Tensor, timesteps: Tensor, conditions: Mapping[str, Tensor], is_null: Tensor | None
    ) -> Tensor:
        self.num_rows.append(len(sample))
        time = timesteps.to(sample.dtype).view(-1, 1, 1, 1) / 1000
        told = conditions["frame"] if is_null is None else conditions["frame"] * ~is_null.view(-1, 1, 1, 1)
        return torch.tanh(sample * (0.5 + time)) * 0.7 + 0.2 * told

    def leave(self, clean: Tensor) -> Tensor:
        return clean[0] / 2 + 0.5


def frames(num: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(SIZE, generator=generator) for _ in range(num)]


def diffusion_step(num_steps: int, sampler: str = "lcm", prediction: str = "epsilon", **options) -> DiffusionStep:
    model = ToyModel(prediction)
    return DiffusionStep(model, few_steps(sampler, model.schedule, prediction, 0.6), num_steps, **options)


def all_answers(stepper: DiffusionStep, given_frames: list[Tensor]) -> list[Tensor]:
    answers = [stepper(frame) for frame in given_frames]
    while stepper.in_flight:
        answers.append(stepper.advance())
    return [answer for answer in answers if answer is not None]


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
@pytest.mark.parametrize("prediction", ["epsilon", "v", "sample"])
def test_a_rolling_batch_gives_what_steps_alone_give(sampler, prediction):
    for num_steps in (1, 2, 4):
        rolling = all_answers(diffusion_step(num_steps, sampler, prediction), frames(7))
        alone = all_answers(diffusion_step(num_steps, sampler, prediction, is_rolling=False), frames(7))
        assert len(rolling) == len(alone) == 7
        for one, other in zip(rolling, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


def test_frame_k_comes_out_of_call_k_plus_n_minus_1():
    stepper = diffusion_step(4)
    given_frames = frames(6)
    outputs = [stepper(frame) for frame in given_frames]
    assert [output is None for output in outputs] == [True, True, True, False, False, False]
    alone = diffusion_step(4, is_rolling=False)
    for k in range(3):
        torch.testing.assert_close(outputs[k + 3], alone(given_frames[k]), rtol=0, atol=2e-6)


def test_a_frame_alone_equals_the_samplers_own_loop():
    model = ToyModel()
    steps = few_steps("lcm", model.schedule, "epsilon", 0.6)(4)
    frame = frames(1)[0]
    noise = torch.randn(4, 2, *SIZE, generator=torch.Generator().manual_seed(0))
    clean = frame[None] * 2 - 1
    sample = noised(steps.at(torch.tensor([0])), clean, noise[:1, 0])
    for slot in range(4):
        rows = steps.at(torch.tensor([slot]))
        output = model.predict(model_input(rows, sample), rows.timesteps, {"frame": frame[None]}, None)
        sample, _, _ = step(rows, sample, output, noise=noise[slot : slot + 1, 1])
    torch.testing.assert_close(diffusion_step(4, is_rolling=False)(frame), model.leave(sample), rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 5),
    st.lists(st.booleans(), min_size=1, max_size=20),
    st.sampled_from(["none", "self", "onetime", "full"]),
)
def test_gaps_between_frames_change_no_answer(num_steps, is_frame, kind):
    """A still scene advances what is in flight without a new frame. No frame gets another answer by it."""
    guidance = Guidance(kind, 1.5, 0.9)
    given_frames = frames(len(is_frame))
    with_gaps, answers = diffusion_step(num_steps, guidance=guidance), []
    for frame, is_given in zip(given_frames, is_frame, strict=True):
        answer = with_gaps(frame) if is_given else with_gaps.advance()
        answers += [] if answer is None else [answer]
    while with_gaps.in_flight:
        answer = with_gaps.advance()
        answers += [] if answer is None else [answer]
    alone = diffusion_step(num_steps, guidance=guidance, is_rolling=False)
    expected = [alone(frame) for frame, is_given in zip(given_frames, is_frame, strict=True) if is_given]
    assert len(answers) == len(expected)
    for one, other in zip(answers, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-6)


def sequential_residual(num_steps: int, kind: str, weight: float, delta: float, frame: Tensor) -> Tensor:
    """Compute residual guidance by StreamDiffusion's recursion over the steps, in float64, for DDIM-free LCM steps.

    s_0 is the first noise, or what the model says without the prompt; then s_{i+1} = e_{i+1} + a_{i+1} D_i / b_{i+1}
    with D_i = b_i (s_i - e) / a_i. Between steps the sample is a' x0 + b' noise, as LCM's without boundary condition.
    """
    model = ToyModel()
    table = few_steps("lcm", model.schedule, "epsilon", 0.6)(num_steps)
    a = model.schedule.alphas_cumprod[table.timesteps].sqrt()
    b = (1 - model.schedule.alphas_cumprod[table.timesteps]).sqrt()
    noise = torch.randn(num_steps, 2, *SIZE, generator=torch.Generator().manual_seed(0)).double()
    z = (frame[None] * 2 - 1).double()
    condition = {"frame": frame[None].double()}
    entering = [noise[0:1, 0]] + [noise[i : i + 1, 1] for i in range(num_steps - 1)]
    x = a[0] * z + b[0] * entering[0]
    virtual = entering[0]
    for i in range(num_steps):
        time = table.timesteps[i : i + 1]
        told = model.predict(x, time, condition, None)
        if kind == "onetime" and i == 0:
            virtual = model.predict(x, time, condition, torch.tensor([True]))
        e = delta * virtual + weight * (told - delta * virtual)
        x0 = (x - b[i] * e) / a[i]
        if i + 1 < num_steps:
            change = b[i] * (virtual - e) / a[i]
            virtual = entering[i + 1] + a[i + 1] * change / b[i + 1]
            x = a[i + 1] * x0 + b[i + 1] * entering[i + 1]
    return model.leave(x0)


@pytest.mark.parametrize("kind", ["self", "onetime"])
@pytest.mark.parametrize("num_steps", [1, 2, 4])
@pytest.mark.parametrize("delta", [1.0, 0.8])
def test_residual_guidance_equals_its_recursion(kind, num_steps, delta, monkeypatch):
    """The anchor form is StreamDiffusion's recursion, also for one step. LCM's boundary condition is put to 1 and 0."""
    from whet.models import samplers

    def without_boundary(schedule, timesteps, *, prediction, clip):
        return samplers.lcm(schedule, timesteps, prediction=prediction, timestep_scaling=1e9)

    monkeypatch.setitem(SAMPLERS, "lcm", without_boundary)
    stepper = diffusion_step(num_steps, guidance=Guidance(kind, 1.7, delta))
    given_frames = frames(5)
    answers = all_answers(stepper, given_frames)
    for frame, answer in zip(given_frames, answers, strict=True):
        expected = sequential_residual(num_steps, kind, 1.7, delta, frame)
        torch.testing.assert_close(answer.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("prediction", ["epsilon", "v", "sample"])
@pytest.mark.parametrize("sampler", ["lcm", "ddim", "euler"])
def test_guidance_of_weight_1_changes_nothing(prediction, sampler):
    plain = all_answers(diffusion_step(3, sampler, prediction), frames(5))
    for kind in ("full", "self", "onetime"):
        guided = all_answers(diffusion_step(3, sampler, prediction, guidance=Guidance(kind, 1.0)), frames(5))
        for one, other in zip(plain, guided, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


@pytest.mark.parametrize("prediction", ["epsilon", "v", "sample"])
@pytest.mark.parametrize("sampler", ["ddim", "euler", "dpm++2m"])
def test_self_guidance_of_weight_0_gives_back_the_frame(prediction, sampler):
    """Each step then leads back to its anchor, the frame that came in: without LCM's boundary, in every scale."""
    for frame, answer in zip(
        frames(4),
        all_answers(diffusion_step(3, sampler, prediction, guidance=Guidance("self", 0.0)), frames(4)),
        strict=True,
    ):
        torch.testing.assert_close(answer, frame, rtol=0, atol=2e-5)


@pytest.mark.parametrize("delta", [1.0, 0.9])
def test_residual_guidance_is_finite_where_a_timestep_holds_noise_alone(delta):
    model = ToyModel("v")
    model.schedule = model.schedule.with_zero_terminal_snr()
    steps_of = few_steps("ddim", model.schedule, "v", 1.0)
    stepper = DiffusionStep(model, steps_of, 3, guidance=Guidance("self", 1.5, delta))
    assert all(torch.isfinite(answer).all() for answer in all_answers(stepper, frames(4)))


def test_guidance_calls_as_many_rows_as_it_says():
    for kind, expected in {"none": 4, "self": 4, "onetime": 5, "full": 8}.items():
        model = ToyModel()
        steps_of = few_steps("lcm", model.schedule, "epsilon", 0.6)
        stepper = DiffusionStep(model, steps_of, 4, guidance=Guidance(kind, 1.5))
        for frame in frames(6):
            stepper(frame)
        assert model.num_rows[-1] == expected


def test_the_last_finished_frame_is_fed_back_with_8_bits_and_finite():
    model = ToyModel()
    stepper = DiffusionStep(model, few_steps("lcm", model.schedule, "epsilon", 0.6), 2, feeds_back=True)
    outputs = [stepper(frame) for frame in frames(4)]
    assert model.previous[0] is model.previous[1] is None
    for seen, output in zip(model.previous[2:], outputs[1:3], strict=True):
        torch.testing.assert_close(seen, output.clamp(0, 1).mul(255).round() / 255, rtol=0, atol=0)
    broken = frames(1)[0] * torch.nan
    after = [stepper(broken), stepper(frames(1)[0]), stepper(frames(1)[0])]
    assert torch.isnan(after[1]).any() and not torch.isnan(after[2]).any()
    assert all(torch.isfinite(seen).all() for seen in model.previous[2:])


def test_a_change_of_steps_discards_what_is_in_flight():
    stepper = diffusion_step(4)
    for frame in frames(2):
        stepper(frame)
    stepper.change(1)
    assert (stepper.in_flight, stepper.steps) == (0, 1)
    torch.testing.assert_close(stepper(frames(1)[0]), diffusion_step(1)(frames(1)[0]), rtol=0, atol=0)


def test_frames_of_another_size_get_noise_of_their_size():
    stepper = diffusion_step(2)
    stepper(frames(1)[0])
    stepper.change(None)
    assert stepper(torch.rand(3, 2, 2)) is None
    assert stepper(torch.rand(3, 2, 2)).shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("kind", "weight", "delta"), [("some", 1, 1), ("full", -1, 1), ("full", 101, 1), ("self", 1, 0), ("self", 1, 1.1)]
)
def test_wrong_guidance_is_refused(kind, weight, delta):
    with pytest.raises(OptionError, match="guidance"):
        Guidance(kind, weight, delta)


def test_guidance_without_a_null_prompt_is_refused():
    model = ToyModel()
    model.has_null = False
    with pytest.raises(OptionError, match="choose self or none"):
        DiffusionStep(model, few_steps("lcm", model.schedule, "epsilon", 0.6), 2, guidance=Guidance("full", 2.0))


@pytest.mark.parametrize(
    ("sampler", "strength", "num_steps"),
    [("best", 0.5, 2), ("lcm", 0.0, 2), ("lcm", 1.5, 2), ("lcm", 0.5, 0), ("lcm", 0.04, 3), ("ddim", 0.001, 2)],
)
def test_wrong_steps_are_refused(sampler, strength, num_steps):
    with pytest.raises(OptionError, match=r"--(sampler|strength|steps)"):
        few_steps(sampler, Schedule.scaled_linear(), "epsilon", strength)(num_steps)
