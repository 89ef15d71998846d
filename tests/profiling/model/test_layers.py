"""Costs of layers, against PyTorch's own counter, figures worked out by hand, and modules that take a known time."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from whet.core.signature import Batch
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.models.encoder import Encoder, EncoderConfig
from whet.models.resnet import ResNet
from whet.profiling.model import LayerCost, Profile, profile_layers, profile_sizes
from whet.profiling.model.layers import kind_of
from whet.profiling.model.spans import watching_cost_s

FLOAT = 4  # bytes


def examined_of(model: nn.Module, batch: Batch) -> ExaminedWorkload:
    return examine(Workload(model=model, inputs=[batch]))


def profile(model: nn.Module, batch: Batch, repeats: int = 1) -> Profile:
    return profile_layers(examined_of(model, batch), repeats=repeats)


def by_name(found: Profile) -> dict[str, LayerCost]:
    assert len({layer.name for layer in found.layers}) == len(found.layers)
    return {layer.name: layer for layer in found.layers}


def counted_by_torch(model: nn.Module, *args: Tensor) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*args)
    return counter.get_total_flops()


class Recurrent(nn.Module):
    """One cell, called for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(16, 16)

    def forward(self, x_BTD: Tensor) -> Tensor:
        state_BD = torch.zeros_like(x_BTD[:, 0])
        for x_BD in x_BTD.unbind(1):
            state_BD = torch.tanh(self.cell(state_BD) + x_BD)
        return state_BD


class Functional(nn.Module):
    """Uses a Linear's weights, but never calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 32)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": F.linear(x, self.linear.weight, self.linear.bias)}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        q, k, v = self.qkv(x_BTD).view(B, T, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind()
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, D)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "encoder": lambda: (Encoder(EncoderConfig(num_layers=1)), torch.randint(0, 2048, (2, 16))),
    "resnet": lambda: (ResNet(widths=(8, 16), depths=(1, 1)), torch.randn(2, 1, 16, 16)),
    "recurrent": lambda: (Recurrent(), torch.randn(2, 5, 16)),
    "functional": lambda: (Functional(), torch.randn(4, 8)),
    "transposed": lambda: (nn.ConvTranspose2d(4, 8, 3, stride=2), torch.randn(1, 4, 7, 7)),
    "lstm": lambda: (LastOnly(nn.LSTM(8, 8, batch_first=True)), torch.randn(2, 5, 8)),
}


class LastOnly(nn.Module):
    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MODELS)
def test_operations_add_up_to_torchs_count(name: str) -> None:
    model, x = MODELS[name]()
    found = profile(model, x)
    assert sum(layer.flops for layer in found.layers) == counted_by_torch(model.eval(), x)
    assert all(layer.time_s >= 0 and layer.calls >= 1 for layer in found.layers)
    assert found.total_s > 0
    assert found.dtype == "float32"


def test_a_linear_layer_by_hand() -> None:
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 8, bias=False))
    layers = by_name(profile(model, torch.randn(5, 24)))
    first, relu, last = layers["0"], layers["1"], layers["2"]
    assert first.flops == 2 * 5 * 24 * 48
    assert first.weight_bytes == FLOAT * (24 * 48 + 48)
    assert first.activation_bytes == FLOAT * (5 * 24 + 5 * 48)
    assert (first.kind, first.calls, first.num_operators, first.operators) == ("Linear", 1, 1, ("addmm",))
    assert (relu.kind, relu.flops, relu.weight_bytes) == ("ReLU", 0, 0)
    assert relu.activation_bytes == FLOAT * 2 * 5 * 48
    assert last.weight_bytes == FLOAT * 48 * 8
    assert layers[""].kind == "Sequential"
    assert layers[""].num_operators == 0
    assert {layer.model_weight_bytes for layer in layers.values()} == {first.weight_bytes + last.weight_bytes}


def test_a_convolution_by_hand() -> None:
    layers = by_name(profile(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1)), torch.randn(2, 3, 10, 12)))
    assert layers["0"].flops == 2 * (2 * 8 * 10 * 12) * (3 * 3 * 3)
    assert layers["0"].activation_bytes == FLOAT * 2 * 10 * 12 * (3 + 8)


def test_an_embedding_reads_only_the_rows_it_looks_up() -> None:
    layers = by_name(profile(nn.Sequential(nn.Embedding(1000, 16)), torch.randint(0, 1000, (2, 3))))
    assert layers["0"].weight_bytes == FLOAT * 6 * 16
    assert layers["0"].activation_bytes == 8 * 6 + FLOAT * 6 * 16


class Residual(nn.Module):
    """Its own operators read a child's output and the input; what they make between is nobody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        doubled = x * 2
        return torch.relu(self.linear(doubled) + x) * 3 + 1


def test_bytes_are_counted_at_a_modules_border() -> None:
    layers = by_name(profile(Residual(), torch.randn(4, 16)))
    size = FLOAT * 4 * 16
    # reads x and the child's output; gives the child its input, and the caller the result
    assert layers[""].activation_bytes == 4 * size
    assert layers[""].num_operators == 5
    assert layers["linear"].activation_bytes == 2 * size


def test_changes_in_place_are_written() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True))
    layers = by_name(profile(model, torch.randn(2, 8)))
    assert layers["1"].activation_bytes == 2 * FLOAT * 2 * 8


def test_a_shared_module_counts_its_calls() -> None:
    linear = nn.Linear(16, 16)
    layers = by_name(profile(nn.Sequential(linear, nn.ReLU(), linear), torch.randn(2, 16)))
    assert layers["0"].calls == 2
    assert "2" not in layers
    assert layers["0"].flops == 2 * (2 * 2 * 16 * 16)
    assert layers["0"].weight_bytes == FLOAT * (16 * 16 + 16)


def test_weights_used_without_their_module_belong_to_the_user() -> None:
    layers = by_name(profile(Functional(), torch.randn(4, 8)))
    assert set(layers) == {""}
    assert layers[""].kind == "Functional"
    assert layers[""].weight_bytes == FLOAT * (8 * 32 + 32)
    assert layers[""].flops == 2 * 4 * 8 * 32
    assert layers[""].activation_bytes == FLOAT * 4 * (8 + 32)


def test_fused_attention_is_counted_with_the_module_that_runs_it() -> None:
    layers = by_name(profile(Attention(), torch.randn(2, 6, 32)))
    assert layers[""].flops == 2 * (2 * 2 * 4 * 6 * 6 * 8)  # two products of [6, 8] and [8, 6], 2 samples, 4 heads
    assert layers["qkv"].flops == 2 * 12 * 32 * 96


def test_paths_that_hooks_would_turn_off_are_measured_as_they_run() -> None:
    model = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).eval()
    x = torch.randn(2, 6, 32)
    (layer,) = profile(model, x).layers  # PyTorch runs it as one operator
    assert layer.kind == "TransformerEncoderLayer"
    products = 2 * 12 * (4 * 32 * 32 + 2 * 32 * 64)
    assert layer.flops == products + 2 * (2 * 2 * 4 * 6 * 6 * 8)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_left_as_it_was(name: str) -> None:
    model, x = MODELS[name]()
    examined = examined_of(model, x)
    state = [dict(vars(module)) for module in model.modules()]
    profile_layers(examined, repeats=1)
    assert [dict(vars(module)) for module in model.modules()] == state
    with torch.no_grad():
        again = model(x)
    again = again["y"] if isinstance(again, dict) else again
    assert torch.equal(again, examined.outputs[0][0])


def test_a_forward_that_was_replaced_before_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    calls = []
    original = model[0].forward

    def mine(x: Tensor) -> Tensor:
        calls.append(1)
        return original(x)

    model[0].forward = mine
    found = profile(model, torch.randn(2, 4))
    assert model[0].forward is mine
    assert calls
    assert by_name(found)["0"].flops == 2 * 2 * 4 * 4


def test_a_model_that_raises_is_left_as_it_was() -> None:
    class Raises(nn.Module):
        broken = False

        def forward(self, x: Tensor) -> Tensor:
            if self.broken:
                raise RuntimeError("out of luck")
            return x + 1

    model = nn.Sequential(Raises())
    examined = examined_of(model, torch.randn(2))
    Raises.broken = True
    with pytest.raises(RuntimeError, match="out of luck"):
        profile_layers(examined)
    assert "forward" not in vars(model[0])


class Clock:
    """A clock that stands still, but for the modules that move it on and for what it costs to read it."""

    def __init__(self, reading_ns: int) -> None:
        self.now_ns = 0
        self.reading_ns = reading_ns

    def perf_counter_ns(self) -> int:
        self.now_ns += self.reading_ns
        return self.now_ns

    def perf_counter(self) -> float:
        return self.now_ns / 1e9


@pytest.fixture(params=[0, 700], ids=["reading is free", "reading costs"])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock(request.param)
    for module in ("layers", "spans"):
        monkeypatch.setattr(f"whet.profiling.model.{module}.time", clock)
    watching_cost_s.cache_clear()
    yield clock
    watching_cost_s.cache_clear()


class Sleeper(nn.Module):
    """Let time pass on a clock, and then call what is inside."""

    def __init__(self, clock: Clock, seconds: float, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.clock, self.seconds, self.inner = clock, seconds, inner

    def forward(self, x: Tensor) -> Tensor:
        self.clock.now_ns += round(self.seconds * 1e9)
        return x + 1 if self.inner is None else self.inner(x)  # type: ignore[no-any-return]


def test_time_goes_to_the_innermost_module(clock: Clock) -> None:
    inner = Sleeper(clock, 0.02)
    found = profile(nn.Sequential(Sleeper(clock, 0.01, inner), inner, nn.Identity()), torch.randn(2), repeats=3)
    layers = by_name(found)
    # What watching costs around the second call of the inner module is taken off its first caller too.
    assert layers["0"].time_s == pytest.approx(0.01, abs=1e-6)
    assert layers["0.inner"].time_s == pytest.approx(0.04)
    assert layers["0.inner"].calls == 2
    assert layers["2"].time_s == pytest.approx(0, abs=1e-9)
    assert found.total_s == pytest.approx(0.05, abs=1e-6)


def test_what_watching_costs_is_taken_off(clock: Clock) -> None:
    """Each of 300 calls takes 1 us; to watch it takes as long again."""
    model = nn.Sequential(*(Sleeper(clock, 1e-6) for _ in range(300)))
    found = profile(model, torch.randn(1))
    assert found.total_s == pytest.approx(300e-6, abs=1e-6)
    assert by_name(found)["7"].time_s == pytest.approx(1e-6)
    assert sum(layer.time_s for layer in found.layers) == pytest.approx(300e-6)


def test_a_real_clock_sees_every_layer() -> None:
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(384, 384), nn.GELU())))
    found = profile(model, torch.randn(128, 384), repeats=7)
    assert all(layer.time_s > 0 for layer in found.layers if layer.name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_parts_count_as_one() -> None:
    linear = nn.Linear(8, 8)
    script: Any = torch.jit.trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(2, 8))
    layers = by_name(profile(nn.Sequential(script, linear), torch.randn(2, 8)))
    assert set(layers) == {"", "1"}
    assert layers[""].flops == 2 * 2 * 8 * 8  # a script runs no Python: its work goes to its caller
    (whole,) = profile(script, torch.randn(2, 8)).layers
    assert whole.flops == 2 * 2 * 8 * 8

    compiled: Any = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), backend="eager")
    layers = by_name(profile(nn.Sequential(compiled, linear), torch.randn(2, 8)))
    assert set(layers) == {"", "0", "1"}
    assert layers["0"].flops == 2 * 2 * 8 * 8


def test_kinds() -> None:
    class MyLinear(nn.Linear):
        pass

    class MLP(nn.Sequential):
        pass

    class Norm(nn.Module):
        pass

    kinds = [kind_of(m) for m in (MyLinear(1, 1), MLP(), Norm(), nn.ReLU6(), nn.Sequential(), nn.BatchNorm2d(1))]
    assert kinds == ["Linear", "MLP", "Norm", "ReLU6", "Sequential", "BatchNorm2d"]
    attention = nn.MultiheadAttention(4, 1)
    assert kind_of(attention.out_proj) == "Linear"


def test_the_dtype_is_that_of_most_weights() -> None:
    model = nn.Sequential(nn.Linear(16, 16).to(torch.bfloat16), nn.LayerNorm(16).to(torch.bfloat16))
    model.register_buffer("scale", torch.ones(3))
    assert profile(model, torch.randn(2, 16).to(torch.bfloat16)).dtype == "bfloat16"
    assert profile(nn.ReLU(), torch.randn(3)).dtype == "float32"


def test_each_size_of_batch_has_a_profile() -> None:
    batches = [torch.randn(rows, 16) for rows in (4, 8, 4, 4)]
    found = profile_sizes(examine(Workload(model=nn.Linear(16, 16).eval(), inputs=batches)))
    assert [(sum(layer.flops for layer in profile.layers), count) for profile, count in found] == [
        (2 * 4 * 16 * 16, 3),
        (2 * 8 * 16 * 16, 1),
    ]


def test_of_many_sizes_a_few_are_counted() -> None:
    batches = [torch.randn(rows, 16) for rows in range(1, 41)]
    model = nn.Linear(16, 16).eval()
    calls: list[int] = []
    hook = model.register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
    found = profile_sizes(examine(Workload(model=model, inputs=batches)), repeats=1)
    hook.remove()
    assert len(found) == 8 and sum(count for _, count in found) == 40
    mean = sum(count * sum(layer.flops for layer in profile.layers) for profile, count in found) / 40
    assert mean == pytest.approx(2 * 20.5 * 16 * 16, rel=0.05)
    assert max(map(calls.count, range(2, 41))) <= 3  # twice by examine
