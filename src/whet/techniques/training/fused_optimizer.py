"""Update all parameters in one fused loop.

What            The optimiser's own fused kernel: each number is read once, updated and written once. Optimisers without
                one take all parameters operator by operator (kind="foreach"), or their step is compiled to such a loop
                (kind="compiled").
When it helps   Adam, AdamW, SGD and Adagrad whose update is a visible part of the step: small batches, many parameters.
                Others, such as NAdam and RMSprop, with kind="compiled".
When it hurts   Hardly ever; "foreach" needs memory for intermediate results of all parameters at once. "compiled" takes
                some ten seconds in the first step.
Numerics        The same formula in another order of operations: 1e-5 relative of an update.
Composes        With everything that keeps the optimiser. Beside bf16_parameters, whose updates exchange the parameters'
                data, a compiled step runs as it is written.
Source          PyTorch documentation, torch.optim.AdamW, "fused" and "foreach"; PyTorch tutorial, "Compiling the
                optimizer with torch.compile".
"""

from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from whet.core.artefact.inductor import missing_tools
from whet.measure.machine import Machine
from whet.techniques.mechanisms.optimizers import OPTIMIZER, replace_step
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import is_sharded
from whet.techniques.technique import Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {"kind": ("fused", "foreach", "compiled")}
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
_FUSED_SHARDED = (torch.optim.Adam, torch.optim.AdamW)
_COMPILED = (  # Adafactor and Muon read numbers in the middle of a step, which a compiler cannot follow
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of fused_optimizer.

    Attributes:
        kind: "fused" for one kernel, "foreach" for one operator after the other over all parameters, "compiled" for
            generated code.
    """

    kind: str = "fused"


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that the optimiser has such an implementation and does not use it already."""
    optimizer = parts.optimizer
    name = type(optimizer).__name__
    if options.kind not in _SPACE["kind"]:
        return NotApplicable(f"kind must be fused, foreach or compiled, not {options.kind!r}")
    if options.kind == "fused" and type(optimizer) not in _FUSED:
        return NotApplicable(f"{name} has no fused kernel")
    if options.kind == "fused" and type(optimizer) not in _FUSED_SHARDED and is_sharded(parts.model):
        return NotApplicable(f"{name}'s fused kernel does not take the parameters of fully_shard")
    if options.kind == "compiled":
        return _may_compile(parts)
    if options.kind == "foreach" and type(optimizer) in _FUSED:
        return NotApplicable(f"{name} has a fused kernel, which is faster")
    is_torchs = getattr(torch.optim, name, None) is type(optimizer)
    if options.kind == "foreach" and not (is_torchs and "foreach" in optimizer.defaults):
        return NotApplicable(f"{name} has no implementation over all parameters")
    if all(group.get(options.kind) for group in optimizer.param_groups):
        return NotApplicable(f"the optimiser is {options.kind} already", is_so=True)
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return NotApplicable("the optimiser's step is differentiated")
    if not all(p.is_floating_point() for group in optimizer.param_groups for p in group["params"]):
        return NotApplicable("some parameters are not floating-point")
    return Applies(f"one loop for {sum(len(group['params']) for group in optimizer.param_groups)} parameters")


def _may_compile(parts: Parts) -> Applicability:
    """Check that the optimiser is one whose step the compiler can follow, and that no kernel does better."""
    optimizer = parts.optimizer
    if type(optimizer) not in _COMPILED:
        has_kernel = type(optimizer) in _FUSED
        why = "has a fused kernel, which is faster" if has_kernel else "has a step that cannot be compiled as a whole"
        return NotApplicable(f"{type(optimizer).__name__} {why}")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return NotApplicable("the optimiser's step is differentiated")
    if reason := missing_tools(at_load=True, device=parts.device_type):
        return NotApplicable(reason)
    return Applies("the update as generated code")


def apply(parts: Parts, options: Options) -> Parts:
    if options.kind == "compiled":
        _CompiledStep(parts.optimizer)
        return parts
    use = _take_together if options.kind == "foreach" else _fuse
    use(parts.optimizer)
    parts.optimizer.register_load_state_dict_post_hook(use)  # a checkpoint brings its own settings
    return parts


class _CompiledStep:
    """Make the steps of an optimiser by generated code, for the groups of parameters that it has by itself.

    The code takes learning rates as tensors. As a number, each new rate of a schedule would be compiled anew, and after
    eight of them the compiler would give up.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Take the place of the optimiser's step."""
        self._optimizer, self._plain, self._groups = optimizer, optimizer.step, optimizer.param_groups
        self._compiled = torch.compile(self._plain)
        optimizer.register_load_state_dict_post_hook(self._have_loaded)
        replace_step(optimizer, self._make_step)

    def _make_step(self) -> None:
        if self._optimizer.param_groups is not self._groups:  # somebody exchanges parameters
            self._plain()
            return
        rates = [group["lr"] for group in self._groups]
        for group, rate in zip(self._groups, rates, strict=True):
            group["lr"] = torch.as_tensor(rate, dtype=torch.float32)
        try:
            self._compiled()
        finally:
            for group, rate in zip(self._groups, rates, strict=True):
                group["lr"] = rate

    def _have_loaded(self, optimizer: Optimizer) -> None:
        """Take the groups that a checkpoint has put in the place of the old ones."""
        self._groups = optimizer.param_groups


def _take_together(optimizer: Optimizer) -> None:
    for group in (optimizer.defaults, *optimizer.param_groups):
        group["foreach"] = True


def _fuse(optimizer: Optimizer) -> None:
    optimizer.defaults.update(fused=True, foreach=False)
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=False)
    for p, state in optimizer.state.items():
        if isinstance(step := state.get("step"), torch.Tensor):
            state["step"] = step.to(device=p.device, dtype=torch.float32)
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]


TECHNIQUE = TrainingTechnique(
    name="fused_optimizer",
    stage=TrainingStage.OPTIMIZER,
    order=10,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    predict=lambda profile, limits, options: profile.bound(optimizer_s=profile.least_optimizer_s(limits)),
    apply=apply,
    keeps_dropout=True,
    space=_SPACE,
    groups=frozenset({OPTIMIZER}),
)
