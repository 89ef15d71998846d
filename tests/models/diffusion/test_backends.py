"""A model's calls are compiled where that works, and 8-bit floats are used where the chip has them."""

import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from whet.errors import OptionError
from whet.measure.machine import describe
from whet.models.diffusion import backends
from whet.models.diffusion.backends import check_backend, check_float8, compiler, float8_layers, to_float8
from whet.models.diffusion.placement import Placement

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("turbo", CPU, "--backend is one of inductor, tensorrt; got 'turbo'"),
        ("tensorrt", CPU, "needs a GPU"),
        ("tensorrt", CUDA, "pip install torch-tensorrt"),
    ],
)
def test_a_backend_that_cannot_be_used_is_refused(name, device, said):
    with pytest.raises(OptionError, match=said):
        check_backend(name, device)


def test_no_backend_is_eager_mode():
    check_backend(None, CPU)
    check_backend("inductor", CPU)
    assert Placement.of(backend="inductor").backend == "inductor"
    assert Placement.of().backend is None


@pytest.fixture
def counting(monkeypatch):
    """A compiler that keeps the graph as it is, and counts what it compiles."""
    compiled = []

    def backend(graph, examples):
        compiled.append([tuple(x.shape) for x in examples if isinstance(x, torch.Tensor)])
        return graph.forward

    torch._dynamo.reset()
    torch._dynamo.register_backend(backend, "whet-counting")
    yield compiled
    torch._dynamo.reset()
    torch._dynamo.backends.registry._BACKENDS.pop("whet-counting")
    torch._dynamo.backends.registry._COMPILER_FNS.pop("whet-counting")


def test_each_set_of_shapes_is_compiled_once(counting):
    notes: list[str] = []
    call = compiler("whet-counting", notes)("U-Net", lambda x: torch.sin(x) * 2)
    for rows in (1, 2, 1, 2, 2):
        x = torch.rand(rows, 3)
        assert torch.equal(call(x), torch.sin(x) * 2)
    assert counting == [[(1, 3)], [(2, 3)]] and not notes


def test_what_cannot_be_compiled_runs_as_it_is_and_says_so():
    def broken(graph, examples):
        raise RuntimeError("no such operator\nand much more")

    torch._dynamo.reset()
    notes: list[str] = []
    calls = []

    def call(x):
        calls.append(1)
        return x + 1

    wrapped = compiler(broken, notes)("decoder", call)
    for _ in range(3):
        assert wrapped(torch.zeros(2)).tolist() == [1, 1]
    assert len(notes) == 1 and notes[0].startswith("the decoder runs as it is, since")
    assert "much more" not in notes[0]


def test_tensorrt_is_asked_for_by_its_name_in_torch(monkeypatch):
    seen = []
    monkeypatch.setitem(sys.modules, "torch_tensorrt", types.ModuleType("torch_tensorrt"))
    monkeypatch.setattr(torch, "compile", lambda call, **options: seen.append(options) or call)
    call = compiler("tensorrt", [])("U-Net", lambda x: x)
    assert call(torch.ones(1)).item() == 1
    assert seen == [{"backend": "tensorrt", "dynamic": False}]


@pytest.mark.parametrize(
    ("capability", "said"), [((8, 0), "compute capability 8.0, and 8-bit floats need 8.9; use fp16"), ((8, 9), "")]
)
def test_8_bit_floats_need_a_chip_that_has_them(monkeypatch, capability, said):
    gpu = types.SimpleNamespace(capability=capability)
    here = describe()
    monkeypatch.setattr(backends, "describe", lambda: types.SimpleNamespace(**vars(here) | {"gpus": (gpu,)}))
    if not said:
        check_float8(CUDA)
        return
    with pytest.raises(OptionError, match=said):
        check_float8(CUDA)


def test_a_cpu_would_emulate_8_bit_floats():
    with pytest.raises(OptionError, match="--dtype fp8: the CPU does not multiply 8-bit floats"):
        Placement.of(dtype="fp8")


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(16, 16, 3)
        self.fits = nn.Linear(32, 64)
        self.odd = nn.Linear(30, 64)


def test_only_linear_layers_of_fitting_sizes_are_chosen(monkeypatch):
    model = Mixed()
    assert list(float8_layers(model)) == ["fits"]
    chosen = []
    quantization = types.ModuleType("torchao.quantization")
    quantization.Float8DynamicActivationFloat8WeightConfig = lambda **options: options
    quantization.quantize_ = lambda model, config, filter_fn: chosen.extend(
        name for name, module in model.named_modules() if filter_fn(module, name)
    )
    monkeypatch.setitem(sys.modules, "torchao", types.ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.quantization", quantization)
    notes: list[str] = []
    to_float8([model], notes)
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert chosen == ["fits"]
    assert notes == [f"1 linear layers with {32 * 64 / whole:.0%} of the weights multiply in 8-bit floats"]


@pytest.mark.gpu
def test_8_bit_products_are_close_to_those_of_bfloat16():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 256)).to("cuda", torch.bfloat16)
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = model.double()(x.double())
        model.to(torch.bfloat16)
        to_float8([model], [])
        found = model(x).double()
    error = (found - expected).norm() / expected.norm()
    assert 1e-4 < error < 0.1  # 3 bits of mantissa


@pytest.mark.gpu
def test_a_stream_compiled_by_tensorrt_gives_the_same_frames(tmp_path):
    pytest.importorskip("torch_tensorrt")
    from written_unets import write_unet

    from whet.models.diffusion.unet import UNetConfig
    from whet.streamer.stream import Stream, StreamOptions

    target = str(
        write_unet(Path(tmp_path) / "unet", UNetConfig(frame_size=16, grey_size=8, widths=(8, 8), embedding=16))
    )
    images = []
    for backend in (None, "tensorrt"):
        options = StreamOptions(steps=1, device="cuda", backend=backend)
        with Stream(target, "synthetic:4", options) as stream:
            images.append([torch.from_numpy(answer.image).float() for answer in stream])
    assert all((a - b).abs().mean() < 1 for a, b in zip(*images, strict=True))  # of 255 levels
