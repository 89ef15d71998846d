"""Pad channels to multiples of 8 and vocabularies to multiples of 64, inside forward alone.

What            Convolutions whose channels are no multiple of 8, and linear layers whose outputs are no multiple of 64
                or whose inputs are no multiple of 8, compute with zeros at the ends of weight, bias and input, and cut
                the result. Parameters and checkpoints stay as they are.
When it helps   Large products on tensor cores, which take operands in blocks: a vocabulary of 50,257 becomes 50,304.
When it hurts   Weights are copied in each forward, and so are inputs whose width is padded. Small layers stay. On a CPU
                no difference was seen, so it is refused there. The rows of a padded layer's result lie apart in memory:
                PyTorch's `view` cannot merge its last dimension, where `reshape` can.
Numerics        The same numbers; sums in another order: 1e-6 relative in float32.
Composes        With everything. Inside autocast the padding comes after the cast. A layer that another technique
                computes in training (the last one with chunked_loss, those of fp8) is computed by that one.
Source          NVIDIA, "Matrix Multiplication Background User's Guide" and "Convolutional Layers User's Guide".
"""

from dataclasses import dataclass, replace

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.padded_dimensions import align, unaligned_layers
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {"most_growth": (1.25, 3.0)}
_VOLTA = (7, 0)  # the first compute capability with tensor cores


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of aligned_dimensions.

    Attributes:
        most_growth: The most that padding may multiply a layer's weights by, above 1. With 3.0, the first convolution
            over images with 3 channels is padded too.
    """

    most_growth: float = _SPACE["most_growth"][0]


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that the GPU has tensor cores and that there are large layers whose sizes do not fit them."""
    if options.most_growth <= 1:
        return NotApplicable(f"most_growth must be above 1, not {options.most_growth:g}")
    if parts.device_type != "cuda":
        return NotApplicable("the model is on the CPU, where padded sizes made no product faster")
    capability = (machine.gpus[0].capability if machine.gpus else None) or (0, 0)
    if capability < _VOLTA:
        found = ".".join(map(str, capability))
        return NotApplicable(f"the GPU has compute capability {found}; tensor cores come with 7.0")
    layers, _ = unaligned_layers(parts.model, options.most_growth)
    if not layers:
        return NotApplicable("no large layer has sizes that padding would align", is_so=True)
    return Applies(f"{len(layers)} layers")


def predict(profile: StepProfile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup: products reach the machine's limit.

    The limit is that of the parameters' dtype, or of TensorFloat-32 for float32. Products that are faster than that
    are rounded by the loop itself, and may reach the highest limit of all.
    """
    own = [limits.gemm.get(name, 0.0) for name in (profile.dtype, "tfloat32")]
    fastest = max(own if profile.dtype == "float32" else own[:1])
    if not fastest or profile.flops > fastest * profile.products_s:
        fastest = max(limits.gemm.values(), default=0.0)
    least_s = profile.flops / fastest if fastest else 0.0
    return profile.bound(products_s=min(profile.products_s, least_s))


def apply(parts: Parts, options: Options) -> Parts:
    layers, num_taken = unaligned_layers(parts.model, options.most_growth)
    for layer in layers:
        align(layer)
    if not num_taken:
        return parts
    note = f"aligned_dimensions pads {len(layers)} layers; {num_taken} more are computed by other techniques, unpadded"
    return replace(parts, notes=(*parts.notes, note))


TECHNIQUE = TrainingTechnique(
    name="aligned_dimensions",
    stage=TrainingStage.STRUCTURE,
    order=30,  # after those that compute a layer by themselves
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    predict=predict,
    apply=apply,
    keeps_dropout=True,
    space=_SPACE,
)
