"""Choose where a diffusion model runs and in which number format, and move it there."""

from dataclasses import dataclass

import torch
from torch import nn

from whet.errors import OptionError
from whet.measure.device import usable_device
from whet.measure.machine import describe
from whet.models.diffusion.backends import check_backend, check_float8, compiler, to_float8
from whet.models.diffusion.diffusers_frames import DiffusersFrames
from whet.models.diffusion.directory import Parts, quiet
from whet.models.diffusion.graphs import Graphs, TorchCuda
from whet.models.diffusion.names import DTYPE_NAMES, check_dtype
from whet.models.diffusion.unet_frames import UNetFrames

DTYPES = dict(zip(DTYPE_NAMES, (torch.float32, torch.bfloat16, torch.float16, torch.bfloat16), strict=True))
"""The number formats of models, by the names that users type. With fp8, all but linear layers is in bfloat16."""


@dataclass(frozen=True)
class Placement:
    """Hold where a model runs, and how.

    Attributes:
        dtype: The format of the model's weights and activations.
        backend: What compiles its calls; None for eager mode.
        is_float8: Whether its linear layers multiply in 8-bit floats.
    """

    device: torch.device
    dtype: torch.dtype
    graphs: bool
    backend: str | None = None
    is_float8: bool = False

    @classmethod
    def of(
        cls,
        *,
        device: str | None = None,
        dtype: str | None = None,
        graphs: bool | None = None,
        backend: str | None = None,
    ) -> "Placement":
        """Return the place that the user asked for.

        Args:
            device: "cpu", "cuda" or "cuda:1"; None for the CPU.
            dtype: A name of `DTYPES`; None for float32.
            graphs: Whether models run as CUDA graphs; None for yes on a GPU.
            backend: A name of `whet.models.diffusion.names.BACKENDS`, by which calls are compiled; None for eager mode.

        Raises:
            OptionError: This computer has no such device, or it would emulate the format, or the CPU shall have graphs.
        """
        place = usable_device(device or "cpu", "--device")
        number_format = _dtype(dtype or "float32", place)
        if graphs and place.type != "cuda":
            raise OptionError("--graphs needs a GPU: give --device cuda too, or leave --graphs out")
        check_backend(backend, place)
        has_graphs = place.type == "cuda" if graphs is None else graphs
        return cls(place, number_format, has_graphs, backend, dtype == "fp8")

    def move(self, *modules: nn.Module | None) -> None:
        """Move models to the device, in the format.

        An autoencoder whose settings say `force_upcast` stays in float32 where the format is float16, which it exceeds.
        """
        for module in modules:
            if module is not None:
                is_wide = self.dtype == torch.float16 and getattr(module.config, "force_upcast", False)
                module.to(self.device, torch.float32 if is_wide else self.dtype)

    def move_parts(self, parts: Parts) -> Parts:
        """Move the models of a directory of diffusers, and return them. The text encoder stays on the CPU."""
        with quiet():  # diffusers warns of models that are cast, also where none must stay in float32
            self.move(parts.unet, parts.autoencoder)
        return parts

    def record(self, frames: DiffusersFrames | UNetFrames) -> list[str]:
        """Have the model's calls compiled and recorded as CUDA graphs, if asked for.

        Returns:
            A list of sentences, which gets what doesn't work while the stream runs.
        """
        notes: list[str] = []
        if self.is_float8:
            to_float8(list(frames.call_modules.values()), notes)
        if self.backend is not None:
            frames.wrap(compiler(self.backend, notes))
        if self.graphs:
            frames.wrap(Graphs(TorchCuda(self.device), notes=notes).wrapped)
        return notes


def _dtype(name: str, device: torch.device) -> torch.dtype:
    check_dtype(name)
    if name == "fp8":
        check_float8(device)
    machine = describe()
    computes = {"bf16": machine.computes_bfloat16, "fp16": machine.computes_float16}.get(name)
    if computes is not None and not computes(device.type):
        chip = machine.chip if device.type == "cpu" else torch.cuda.get_device_name(device)
        raise OptionError(f"--dtype {name}: {chip} does not multiply it natively, and would emulate it; use float32")
    return DTYPES[name]
