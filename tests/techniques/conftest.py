"""A subject of any model, and a machine that can do everything."""

from collections.abc import Callable

import pytest
from torch import nn

from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.measure.machine import Machine


@pytest.fixture
def examined_of() -> Callable[..., ExaminedWorkload]:
    """Examine a model with its inputs, without a quality."""

    def build(model: nn.Module, *inputs: object) -> ExaminedWorkload:
        return examine(Workload(model=model.eval(), inputs=list(inputs)))

    return build


@pytest.fixture
def machine() -> Machine:
    """A chip with everything, whatever this one is."""
    return Machine(
        chip="test chip",
        isa=("avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx", "amx_bf16", "amx_int8"),
        cores=4,
        memory_bytes=2**33,
        gpu="",
        gpu_driver="",
        system="Linux x86_64",
        python="3.11",
        torch="2.13",
        torch_threads=4,
    )
