"""Keep the optimiser's state in the host's memory, and update there.

What            For an update, gradients and parameters are copied to the CPU some at a time, updated by the same
                optimiser there, and copied back. Its state lies in the host's memory. With gradients=True, so do the
                gradients from backward to the update: each one moves as soon as it is there.
When it helps   A GPU whose memory the optimiser's state fills: 8 bytes a parameter with Adam, and 4 of gradients.
When it hurts   Always in time: each step moves 12 bytes a parameter over the bus, and the CPU updates. On a CPU there
                is no other memory, so it is refused.
Numerics        The same formula, computed by the CPU: 1e-6 relative of an update.
Composes        Alone in its group (optimizer). Clipping and accumulation go on to work. With gradients=True, p.grad is
                a tensor whose numbers lie on the host, which computes what the loop does with it: norms, factors,
                sums. Kernels of other libraries that read its address do not work. It is refused where several
                processes train together.
Source          Ren et al., 2021, arXiv:2101.06840 (ZeRO-Offload).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from whet.measure.machine import Machine
from whet.techniques.mechanisms.cpu_offloaded_gradients import keep_gradients_on_host
from whet.techniques.mechanisms.optimizer_wrapper import ExchangedUpdates
from whet.techniques.mechanisms.optimizers import OPTIMIZER, updates_one_by_one
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import EXCHANGES, EXCHANGES_SHARDS, Use
from whet.techniques.technique import Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {"gradients": (False, True)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of optimizer_offload.

    Attributes:
        gradients: Whether gradients lie in the host's memory too, from backward to the update.
    """

    gradients: bool = _SPACE["gradients"][0]


class UpdatesOnHost(ExchangedUpdates):
    """Have an optimiser update copies of the parameters in the host's memory."""

    def is_exchanged(self, p: nn.Parameter) -> bool:
        return p.is_cuda

    def lent(self, p: nn.Parameter) -> Tensor:
        return p.data.to("cpu", copy=True)

    def write_back(self, p: nn.Parameter, updated: Tensor) -> None:
        p.copy_(updated)


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    if parts.device_type != "cuda":
        return NotApplicable("the model is on the CPU: there is no other memory that the state could move to")
    if reason := updates_one_by_one(parts.optimizer):
        return NotApplicable(reason)
    if parts.optimizer.state:
        return NotApplicable("the optimiser has a state on the GPU already: apply this before the first step")
    if any(group.get("capturable") for group in parts.optimizer.param_groups):
        return NotApplicable("the optimiser is capturable, which only works on a GPU")
    return Applies(f"the optimiser's state {'and the gradients lie' if options.gradients else 'lies'} on the host")


def apply(parts: Parts, options: Options) -> Parts:
    UpdatesOnHost(parts.optimizer)
    if options.gradients:
        keep_gradients_on_host(p for group in parts.optimizer.param_groups for p in group["params"])
    return parts


TECHNIQUE = TrainingTechnique(
    name="optimizer_offload",
    stage=TrainingStage.OPTIMIZER,
    order=70,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    apply=apply,
    keeps_dropout=True,
    space=_SPACE,
    groups=frozenset({OPTIMIZER}),
    # The state lies in the host's memory, and all gradients but a few may too.
    predict_memory=lambda memory, options: memory.left(optimizer=0.0, gradients=0.02 if options.gradients else 1.0),
    refuses={Use.DDP: EXCHANGES, Use.FSDP2: EXCHANGES_SHARDS},
)
