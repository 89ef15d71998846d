"""The U-Net of frames: its size, what its inputs change, its export, and refusals of wrong configurations."""

import json

import pytest
import torch
from benchmarks.built_in_weights.writing import save_weights
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from whet.errors import OptionError, TargetError
from whet.models.diffusion.unet import FrameUNet, UNetConfig, load_unet

SMALL = UNetConfig(widths=(8, 16), embedding=16, groups=4)


def inputs(batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noisy, previous = torch.randn(2, batch, 3, 64, 64, generator=generator)
    grey = torch.randn(batch, 1, 16, 16, generator=generator)
    return [noisy, torch.full((batch,), 499.0), grey, previous, torch.arange(batch)]


def random_unet(config=SMALL):
    """Return a U-Net in which no layer is zero, as after training."""
    torch.manual_seed(0)
    model = FrameUNet(config)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.05)
    return model.eval()


def test_size_and_cost_of_the_built_in_network():
    """The bounds are those of the plan: 4.1 million parameters and 0.81 GMAC, 5 % more or less."""
    model = FrameUNet().eval()
    num_parameters = sum(p.numel() for p in model.parameters())
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(*inputs(batch=1))
    print(f"{num_parameters / 1e6:.3f} M parameters, {counted.get_total_flops() / 2e9:.4f} GMAC")
    assert 3.9e6 < num_parameters < 4.3e6
    assert 0.77e9 < counted.get_total_flops() / 2 < 0.85e9


def test_new_network_predicts_zero():
    with torch.no_grad():
        assert not FrameUNet(SMALL)(*inputs()).any()


@pytest.mark.parametrize("which", range(5), ids=["noisy", "timestep", "grey", "previous", "digit"])
def test_every_input_matters_to_its_own_row_alone(which):
    model, given = random_unet(), inputs()
    other = [one.clone() for one in given]
    other[which][1] = given[which][1] + (1 if which == 4 else 100 if which == 1 else 0.5)
    with torch.no_grad():
        was, now = model(*given), model(*other)
    assert was.shape == (2, 3, 64, 64)
    torch.testing.assert_close(was[0], now[0])
    assert (was[1] - now[1]).abs().max() > 1e-3


def test_null_digit_is_a_prompt_of_its_own():
    model, given = random_unet(), inputs(batch=1)
    with torch.no_grad():
        none = model(*given[:4], torch.tensor([SMALL.null_digit]))
        assert all((model(*given[:4], torch.tensor([digit])) - none).abs().max() > 1e-4 for digit in range(10))


def test_channels_last_and_float64_give_the_same():
    model, given = random_unet(), inputs()
    with torch.no_grad():
        wanted = random_unet().double()(*[x.double() if x.is_floating_point() else x for x in given]).float()
        torch.testing.assert_close(model(*given), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model.to(memory_format=torch.channels_last)(*given), wanted, rtol=1e-4, atol=1e-4)


def test_export_takes_any_batch():
    model = random_unet()
    batch = torch.export.Dim("batch", min=1, max=16)
    shapes = {name: {0: batch} for name in ("noisy_BCHW", "timestep_B", "grey_BCHW", "previous_BCHW", "digit_B")}
    exported = torch.export.export(model, tuple(inputs()), dynamic_shapes=shapes).module()
    with torch.no_grad():
        for number in (1, 3):
            torch.testing.assert_close(exported(*inputs(number, seed=1)), model(*inputs(number, seed=1)))


def test_symbolic_trace_gives_the_same():
    model = random_unet()
    traced = torch.fx.symbolic_trace(model)
    with torch.no_grad():
        torch.testing.assert_close(traced(*inputs(3, seed=1)), model(*inputs(3, seed=1)))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"widths": (64, 100)}, "multiple of groups = 8; got 100"),
        ({"widths": ()}, "at least one"),
        ({"widths": [64]}, "tuple"),
        ({"frame_size": 60}, "multiple of 8"),
        ({"frame_size": 8, "grey_size": 16}, "grey_size must be at most"),
        ({"block": 0}, "block must be a whole number from 1"),
        ({"embedding": 6}, "embedding must be a multiple of 4"),
        ({"groups": True}, "groups must be a whole number"),
        ({"num_digits": 1.5}, "num_digits must be a whole number"),
    ],
)
def test_wrong_configurations_are_refused(wrong, said):
    with pytest.raises(OptionError, match=said):
        UNetConfig(**wrong)


def write(directory, model, **changes):
    directory.mkdir(exist_ok=True)
    save_weights(model.state_dict(), directory)
    (directory / "config.json").write_text(json.dumps(model.config.as_json() | changes))


def test_loads_what_was_saved(tmp_path):
    model = random_unet()
    write(tmp_path / "unet", model)
    loaded = load_unet(tmp_path / "unet")
    assert loaded.config == SMALL
    assert not loaded.training
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, model.state_dict()[name].bfloat16().float()), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"depth": 3}, "depth is unknown"),
        ({"widths": [8, 18]}, "multiple of groups"),
        ({"widths": 8}, "tuple"),
        ({"embedding": 32}, "do not fit its config.json"),
    ],
)
def test_directories_that_do_not_fit_are_refused(tmp_path, changes, said):
    write(tmp_path, random_unet(), **changes)
    with pytest.raises(TargetError, match=said):
        load_unet(tmp_path)


def test_directory_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL.as_json()))
    with pytest.raises(TargetError, match=r"has no model\.safetensors"):
        load_unet(tmp_path)
