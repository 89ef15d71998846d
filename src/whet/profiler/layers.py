"""Cost of each layer (types fixed by the lead; measuring to be written)."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LayerCost:
    """One leaf module (or one bare operator) over one call of the model.

    flops: 2mnk operations as PyTorch's FlopCounterMode counts them. weight_bytes: parameters read.
    activation_bytes: inputs read and outputs written. time_s: measured.
    """

    name: str  # qualified module name, "" for what no module owns
    kind: str  # module class name, as Linear, Conv2d
    calls: int
    time_s: float
    flops: int
    weight_bytes: int
    activation_bytes: int
    num_operators: int  # aten calls: each costs dispatch


@dataclass(frozen=True)
class Profile:
    """One call of the original, layer by layer. total_s is measured without instruments."""

    total_s: float
    layers: tuple[LayerCost, ...] = field(default_factory=tuple)
    dtype: str = "float32"


def profile_layers(subject: object, *, repeats: int = 5) -> Profile:
    raise RuntimeError
