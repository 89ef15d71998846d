"""Name the backends with which processes can communicate in this build of torch.

This file imports torch only where it is asked, so that `whet doctor` can say that torch is broken.
"""

from importlib import import_module

from pydantic import BaseModel, ConfigDict

_ABSENT = {
    "gloo": "this build of torch has none, so that processes cannot train together on CPUs",
    "nccl": "this build of torch has none, which matters on NVIDIA GPUs only",
}


class Backend(BaseModel):
    """Describe a backend.

    Attributes:
        told: Its version, or why it cannot be used.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    is_available: bool
    told: str


def backends() -> tuple[Backend, ...]:
    """Return what is known of gloo, for CPUs, and of NCCL, for GPUs."""
    torch = import_module("torch")
    distributed = torch.distributed
    is_built = distributed.is_available()
    there = {
        "gloo": is_built and distributed.is_gloo_available(),
        "nccl": is_built and distributed.is_nccl_available(),
    }
    versions = {"gloo": f"built into torch {torch.__version__}"}
    if there["nccl"]:
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return tuple(
        Backend(name=name, is_available=available, told=versions[name] if available else _ABSENT[name])
        for name, available in there.items()
    )
