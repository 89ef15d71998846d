"""Make a model's output follow its prompt: classifier-free guidance, and residual guidance without a second call.

Guidance of weight w gives w*c + (1 - w)*n, where c is the output with the prompt and n the output without it (Ho and
Salimans, arXiv:2207.12598). Residual guidance replaces n by what would lead back to an anchor z: the noise
(x - a*z) / b, where x = a*z + b*noise enters the step (Kodaira et al., arXiv:2312.12491, section 3.3, whose recursion
over the steps gives the same). The anchor is the frame that came in (self-negative), or what the first step makes of it
without the prompt (onetime-negative). The anchor belongs to its frame, so nothing is left over for the next one, also
where there is one step only. A U-Net that was distilled with guidance, as the first latent consistency models were, is
told the weight as an embedding instead, and is called once (Luo et al., arXiv:2310.04378).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from whet.errors import OptionError

if TYPE_CHECKING:  # a Guidance is made from options before torch is imported
    from torch import Tensor

    from whet.models.samplers import Rows

Kind = Literal["none", "full", "self", "onetime", "embedded"]
_LEAST_SIGNAL = 1e-3  # where a timestep holds noise alone and delta is below 1

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Guidance:
    """Set how strongly the output follows the prompt.

    Attributes:
        kind: "none"; "full" computes each step with and without the prompt; "self" and "onetime" are residual;
            "embedded" tells the weight to a U-Net that was distilled with guidance.
        weight: How far to go from the output without the prompt to the one with it, and beyond; 1 changes nothing.
        delta: The factor of the anchor's noise in residual guidance, from above 0 to 1.

    Raises:
        OptionError: A value is out of its range.
    """

    kind: Kind = "none"
    weight: float = 1.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"guidance is one of {', '.join(KINDS)}; got {self.kind!r}")
        if not 0 <= self.weight <= 100 or not 0 < self.delta <= 1:
            raise OptionError(
                "guidance has a weight from 0 to 100 and a delta from above 0 to 1; "
                f"got {self.weight:g} and {self.delta:g}"
            )

    @property
    def is_residual(self) -> bool:
        """Return whether the output without the prompt is replaced by what leads back to an anchor."""
        return self.kind in ("self", "onetime")

    def combined(self, with_prompt: "Tensor", without: "Tensor") -> "Tensor":
        """Return the guided output. Both outputs are [B, C, h, w]."""
        import torch

        return torch.lerp(without, with_prompt, self.weight)

    def residual(self, rows: "Rows", sample: "Tensor", anchor: "Tensor", prediction: str) -> "Tensor":
        """Return the output that leads from each sample back to its anchor.

        Args:
            rows: The step that each row is at.
            sample: The noisy samples in the sampler's scale, [B, C, h, w].
            anchor: The clean samples to lead back to, [B, C, h, w].
        """
        import torch

        from whet.models.samplers import model_input

        seen = model_input(rows, sample)
        scale = model_input(rows, torch.ones_like(sample[:, :1, :1, :1]))
        signal, noise = (scale * part.view(-1, 1, 1, 1).to(sample.dtype) for part in (rows.signal, rows.noise))
        virtual = self.delta * (seen - signal * anchor) / noise
        # This is (seen - noise * virtual) / signal, which at delta = 1 is the anchor, also where there is no signal.
        clean = self.delta * anchor + (1 - self.delta) * seen / signal.clamp(min=_LEAST_SIGNAL)
        match prediction:
            case "epsilon":
                return virtual
            case "sample":
                return clean
            case "v":
                return signal * virtual - noise * clean
            case _:  # the flow from the clean sample to noise
                return virtual - clean
