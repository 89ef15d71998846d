"""Write U-Nets with random weights as `whet stream` takes them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from whet.models.diffusion.unet import FrameUNet, UNetConfig


def write_unet(directory: Path, config: UNetConfig) -> Path:
    """Write a U-Net into a new directory. Weights that start at 0 are random too, so that frames differ from noise."""
    torch.manual_seed(0)
    unet = FrameUNet(config)
    for name, parameter in unet.named_parameters():
        if name.endswith("weight") and not parameter.any():
            torch.nn.init.xavier_uniform_(parameter)
    directory.mkdir(parents=True)
    save_file(unet.state_dict(), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(unet.config.as_json()), encoding="utf-8")
    return directory
