"""Artefacts in fresh processes: what reload_artefact.py makes of them, against what they gave before."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

RELOAD = Path(__file__).with_name("reload_artefact.py")


def assert_the_same_when_reloaded(wanted: Mapping[Path, Mapping[str, Tensor]], *modules: str) -> None:
    """wanted: directory -> outputs by batch and position ("0.1"), for the inputs in DIR.inputs.safetensors."""
    lines = "".join(f"{directory}\n" for directory in wanted)
    command = [sys.executable, str(RELOAD), *modules]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ok"] * len(wanted)
    for directory, outputs in wanted.items():
        found = load_file(f"{directory}.outputs.safetensors")
        assert found.keys() == outputs.keys()
        assert all(torch.equal(found[key], y) for key, y in outputs.items()), directory
