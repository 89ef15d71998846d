"""Read a long-term-memory decoder from a directory. Modules and files have the same names."""

from whet.models.memory_bank.config import read_config
from whet.models.memory_bank.reference import Ltm
from whet.models.tensor_files import ModelFiles

_KEPT_WIDE = ("bank.slot_", "test_time.weights", "test_time.norm")  # the states' own type

FILES = ModelFiles(
    read_config=read_config,
    build=Ltm,
    name_of=lambda stored: stored.removeprefix("model."),
    is_wide=lambda name: any(part in name for part in _KEPT_WIDE),
)
"""Read decoders with long-term memory. What the memories start from stays in float32."""

weight_shapes, read_weights, load_ltm = FILES.shapes, FILES.read, FILES.load
