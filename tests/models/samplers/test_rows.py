"""Rows of one batch may be at different steps, and each computes exactly what it would compute alone."""

from collections.abc import Callable

import pytest
import torch
from sampling_loops import all_steps, bent_model, generator, slots_of
from torch import Tensor, nn

from whet.models.samplers import (
    Rows,
    Schedule,
    Steps,
    consistency,
    ddim,
    dpm_solver_2m,
    euler,
    euler_ancestral,
    flow_euler,
    flow_spaced,
    karras_sigmas,
    lcm,
    lcm_spaced,
    model_input,
    noised,
    step,
    tcd,
    trailing,
)

LATENT = Schedule.scaled_linear()
NUM_STEPS = 5
BUILT = [
    ddim(LATENT, trailing(NUM_STEPS)),
    ddim(LATENT, trailing(NUM_STEPS), prediction="v", eta=0.5, clip=0.8),
    dpm_solver_2m(LATENT, trailing(NUM_STEPS), prediction="v"),
    euler(LATENT, trailing(NUM_STEPS), prediction="sample"),
    euler_ancestral(LATENT, trailing(NUM_STEPS)),
    flow_euler(flow_spaced(NUM_STEPS)),
    lcm(LATENT, lcm_spaced(NUM_STEPS)),
    tcd(LATENT, lcm_spaced(NUM_STEPS), prediction="sample"),
    consistency(karras_sigmas([0, 8, 16, 24, 32])),
]
samplers = pytest.mark.parametrize("steps", BUILT, ids=lambda steps: f"{steps.name}-{steps.prediction}")


def rolled(steps: Steps, clean: Tensor, noises: Tensor, fresh: Tensor) -> list[Tensor]:
    """Run frames through a rolling batch: each call, one frame enters, all move a step, and one may leave.

    Row i of the batch is at step i. Until a frame is in a row, the row holds NaN.

    Args:
        clean: The frames, [frames, ...].
        noises: The noise with which each frame enters, [frames, ...].
        fresh: The noise that each step adds to each frame, [n, frames, ...].
    """
    count = len(steps)
    rows = steps.at(torch.arange(count))
    state = torch.full((count, *clean.shape[1:]), torch.nan, dtype=clean.dtype)
    history = state.clone() if steps.needs_history else None
    left = []
    for call in range(len(clean) + count - 1):
        frames = [min(max(call - slot, 0), len(clean) - 1) for slot in range(count)]
        enters = noised(steps.at(torch.tensor([0])), clean[frames[:1]], noises[frames[:1]])
        state = torch.cat([enters, state[:-1]])
        if history is not None:
            history = torch.cat([torch.full_like(history[:1], torch.nan), history[:-1]])
        output = bent_model(model_input(rows, state), rows.timesteps.to(clean.dtype).view(-1, 1, 1))
        added = torch.stack([fresh[slot, frame] for slot, frame in enumerate(frames)])
        state, _, history = step(rows, state, output, added, history)
        if call >= count - 1:
            left.append(state[-1])
    return left


@samplers
def test_a_rolling_batch_equals_frames_one_after_the_other(steps: Steps) -> None:
    clean = torch.rand(7, 3, 6, generator=generator())
    noises = torch.randn(7, 3, 6, generator=generator().manual_seed(1))
    fresh = torch.randn(len(steps), 7, 3, 6, generator=generator().manual_seed(2))
    together = rolled(steps, clean, noises, fresh)
    assert len(together) == len(clean)
    for frame, result in enumerate(together):
        history = None
        sample = noised(steps.at(torch.tensor([0])), clean[[frame]], noises[[frame]])
        for slot in range(len(steps)):
            rows = steps.at(torch.tensor([slot]))
            output = bent_model(model_input(rows, sample), rows.timesteps.to(sample.dtype).view(-1, 1, 1))
            sample, _, history = step(rows, sample, output, fresh[slot, [frame]], history)
        assert torch.equal(result, sample[0])
        assert result.isfinite().all()


@samplers
def test_mixed_slots_equal_single_rows(steps: Steps) -> None:
    slots = torch.tensor([4, 0, 2, 2, 1, 3, 0])
    tensors = [torch.randn(7, 5, generator=generator().manual_seed(seed)) for seed in range(4)]
    results = step(steps.at(slots), *tensors)
    for row in range(len(slots)):
        alone = step(steps.at(slots[row : row + 1]), *[tensor[row : row + 1] for tensor in tensors])
        for one, other in zip(results, alone, strict=True):
            assert (one is None) == (other is None) == (not steps.needs_history and one is None)
            assert one is None or torch.equal(one[row], other[0])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3.0])
def test_the_first_step_ignores_history(bad: float) -> None:
    steps = BUILT[2]
    sample, output, history = torch.randn(3, 2, 4, generator=generator())
    rows = steps.at(torch.tensor([0, 1]))
    expected = step(rows, sample, output, history=history)
    history = history.clone()
    history[0] = bad
    for one, other in zip(expected, step(rows, sample, output, history=history), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(expected[0][1], step(rows, sample, output)[0][1])  # the second step does use it


def test_without_history_every_step_is_of_first_order() -> None:
    """The step of first order of DPM-Solver++ is that of DDIM."""
    solver, first_order = BUILT[2], ddim(LATENT, trailing(NUM_STEPS), prediction="v")
    slots = torch.arange(NUM_STEPS)
    sample, output = torch.randn(2, NUM_STEPS, 4, generator=generator(), dtype=torch.float64)
    following, clean, history = step(solver.at(slots), sample, output)
    expected, expected_clean, _ = step(first_order.at(slots), sample, output)
    torch.testing.assert_close(following, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(clean, expected_clean) and torch.equal(history, clean)


@samplers
def test_the_last_step_ends_at_the_clean_sample(steps: Steps) -> None:
    sample, output, noise = torch.randn(3, 2, 4, generator=generator())
    following, clean, _ = step(steps.at(slots_of(NUM_STEPS - 1, sample)), sample, output, noise)
    if steps.name == "tcd":  # it ends at timestep 0, which has a little noise
        assert not torch.equal(following, clean)
    torch.testing.assert_close(following, clean, rtol=0, atol=0.2 if steps.name == "tcd" else 1e-6)


@samplers
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_samples_keep_their_type_and_coefficients_their_precision(steps: Steps, dtype: torch.dtype) -> None:
    slots = torch.arange(NUM_STEPS)
    tensors = torch.randn(4, NUM_STEPS, 6, generator=generator(), dtype=torch.float64).to(dtype)
    rows = steps.to(dtype=torch.float32).at(slots) if dtype != torch.float64 else steps.at(slots)
    exact = step(steps.at(slots), *tensors.double())
    for one, other in zip(step(rows, *tensors), exact, strict=True):
        if one is not None:
            assert one.dtype == dtype
            # one rounding to the samples' type, beside that of float32
            torch.testing.assert_close(one.double(), other, rtol=torch.finfo(dtype).eps, atol=2e-4)
    assert noised(rows, tensors[0], tensors[1]).dtype == model_input(rows, tensors[0]).dtype == dtype


@samplers
def test_coefficients_move_and_timesteps_stay_exact(steps: Steps) -> None:
    assert len(steps) == len(steps.rows) == NUM_STEPS
    moved = steps.to("cpu", torch.bfloat16)
    assert moved.signal.dtype == moved.noise.dtype == torch.bfloat16
    whole = not steps.timesteps.is_floating_point()
    assert moved.timesteps.dtype == (torch.int64 if whole else torch.float32)
    assert steps.to().timesteps.dtype == steps.timesteps.dtype
    torch.testing.assert_close(moved.timesteps.double(), steps.timesteps.double(), rtol=1e-6, atol=0)
    assert moved.rows.clip == steps.rows.clip
    assert (moved.needs_noise, moved.needs_history) == (steps.needs_noise, steps.needs_history)


@pytest.mark.parametrize("build", [ddim, dpm_solver_2m, euler, euler_ancestral, lcm, tcd])
def test_estimates_stay_within_the_limit(build: Callable[..., Steps]) -> None:
    """The boundary condition of LCM adds a part of the sample, which is next to nothing at these timesteps."""
    free, limited = (build(LATENT, [900, 600, 300], clip=clip) for clip in (None, 0.8))
    slots = torch.arange(3)
    sample, output, noise = torch.randn(3, 3, 50, generator=generator(), dtype=torch.float64)
    sample = noised(free.at(slots), sample, output)
    estimate = step(free.at(slots), sample, output, noise)[1]
    clean = step(limited.at(slots), sample, output, noise)[1]
    assert float(estimate.abs().max()) > 1.5
    torch.testing.assert_close(clean, estimate.clamp(-0.8, 0.8), rtol=0, atol=1e-6)


class Stepped(nn.Module):
    """Run one step of a batch with the indices of the rows' steps as an input, as one graph."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, slots: Tensor, sample: Tensor, noise: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.steps.at(slots)
        timesteps = rows.timesteps.to(sample.dtype).view(-1, 1)
        output = bent_model(model_input(rows, sample), timesteps)
        following, clean, _ = step(rows, sample, output, noise, history)
        return following, clean


def arguments(slots: list[int]) -> tuple[Tensor, ...]:
    return torch.tensor(slots), *torch.randn(3, len(slots), 6, generator=generator())


@samplers
def test_a_step_compiles_as_one_graph(steps: Steps) -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(Stepped(steps), backend=count, fullgraph=True)
    for slots in ([0, 1, 4], [4, 4, 2]):
        for one, other in zip(compiled(*arguments(slots)), Stepped(steps)(*arguments(slots)), strict=True):
            assert torch.equal(one, other)
    assert len(graphs) == 1  # other slots need no other graph


@pytest.mark.parametrize("steps", [BUILT[2], BUILT[6], BUILT[8]], ids=lambda steps: steps.name)
def test_a_step_exports(steps: Steps) -> None:
    exported = torch.export.export(Stepped(steps), arguments([0, 1, 4])).module()
    for one, other in zip(exported(*arguments([3, 0, 2])), Stepped(steps)(*arguments([3, 0, 2])), strict=True):
        assert torch.equal(one, other)


def test_rows_may_be_an_argument_of_a_compiled_function() -> None:
    def run(rows: Rows, sample: Tensor, output: Tensor) -> Tensor:
        return step(rows, sample, output)[0]

    compiled: Callable[..., Tensor] = torch.compile(run, backend="eager", fullgraph=True)
    sample, output = torch.randn(2, 3, 4, generator=generator())
    for slots in (torch.tensor([0, 1, 2]), torch.tensor([4, 0, 3])):
        rows = BUILT[3].at(slots)
        assert torch.equal(compiled(rows, sample, output), run(rows, sample, output))


@samplers
def test_a_loop_does_not_change_the_steps(steps: Steps) -> None:
    sample = torch.randn(2, 3, 4, generator=generator())
    first, _ = all_steps(steps, sample, noise=generator())
    again, _ = all_steps(steps, sample, noise=generator())
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
