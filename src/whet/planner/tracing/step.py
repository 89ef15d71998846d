"""Train a decoder for some steps as one rank of a plan, and find what its memory holds when it holds most."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from whet.parallel.division import Division, accumulating, inner_optimizer
from whet.planner.tracing.live_bytes import LiveBytes, Segment
from whet.planner.tracing.traced_decoder import loss_of

CLIP = 1.0  # the norm that gradients are clipped to, which takes no memory worth naming


@dataclass(frozen=True)
class Peak:
    """Hold what lives when most does in one segment of a step that has the optimiser's state.

    Attributes:
        by_kind: Bytes by kind: "parameters", "gradients", "optimizer", "copies" of parameters in other numbers,
            "message" for what messages fill or read, and what else was made in "forward", "backward" or the "update".
        phase: What the program did then.
    """

    by_kind: Counter[str]
    phase: str

    @property
    def total(self) -> int:
        """Return the bytes of all kinds."""
        return sum(self.by_kind.values())


Peaks = dict[Segment, Peak]


class RankStep:
    """Make steps of one rank: its micro-batches, its clipping, its update."""

    def __init__(
        self,
        division: Division,
        model: nn.Module,
        optimizer: Optimizer,
        rows: list[Tensor],
        *,
        autocasts: bool,
        live: LiveBytes,
    ) -> None:
        """Prepare to make steps.

        Args:
            model: The model, divided already.
            rows: Token ids [B, T] of each micro-batch.
            autocasts: Whether forward computes in bfloat16 with parameters in float32.
        """
        self.model, self.optimizer, self.live = model, optimizer, live
        self._division, self._rows, self._autocasts = division, rows, autocasts
        self.called = division.called(model)

    def __call__(self) -> None:
        """Make a step, and leave its gradients until the next one, as a training does."""
        self.live.phase = "update"
        self.optimizer.zero_grad()
        self._gradients()
        self.live.phase, self.live.segment = "update", ("update",)
        self._division.clip(list(self.model.parameters()), CLIP)
        self.optimizer.step()

    def _gradients(self) -> None:
        for number, ids_BT in enumerate(self._rows, 1):
            with accumulating(self._division, self.called, is_last=number == len(self._rows)):
                self.live.phase, self.live.segment = "forward", (number, "forward")
                loss = loss_of(self._forward, ids_BT) / len(self._rows)
                self.live.phase, self.live.segment = "backward", (number, "loss")
                loss.backward()
                del loss

    def _forward(self, ids_BT: Tensor) -> Tensor:
        if not self._autocasts:
            found: Tensor = self.called(ids_BT)
            return found
        with torch.autocast("cpu", torch.bfloat16):
            found = self.called(ids_BT)
        return found.float()


def peaks_of(step: Callable[[], None], model: nn.Module, optimizer: Optimizer, live: LiveBytes) -> Peaks:
    """Return what lives at the peak of each segment of a step that has the optimiser's state.

    It takes three steps: one that makes the state, one that finds the peaks, and one that looks at what lives there.
    """
    step()
    live.begin()
    step()
    segment_at = {at: segment for segment, (_, at) in live.peaks.items()}
    found: Peaks = {}

    def look() -> None:
        found[segment_at[live.num_events]] = Peak(live.by_kind(_named(model, optimizer)), live.phase)

    live.begin(segment_at, look)
    step()
    return found


def _named(model: nn.Module, optimizer: Optimizer) -> list[tuple[str, Iterable[Tensor]]]:
    held = [p for group in optimizer.param_groups for p in group["params"]]  # of a module these may be gathered ones
    return [
        ("parameters", locals_of(held)),
        ("gradients", locals_of(p.grad for p in held)),
        ("optimizer", locals_of(one for state in inner_optimizer(optimizer).state.values() for one in state.values())),
        ("message", _gathered(model)),
    ]


def mark_layers(layers: Sequence[nn.Module], num_front: int, live: LiveBytes) -> None:
    """Make each of the first and last two layers a segment of forward and of backward, for however many layers.

    Args:
        num_front: How many layers count as the first ones.
    """
    for number, layer in enumerate(layers):
        behind = len(layers) - 1 - number
        place = ("last", behind) if behind < 2 else ("first", number) if number < num_front else ("others",)
        layer.register_forward_pre_hook(partial(_enter, live, place))
        layer.register_forward_hook(partial(_leave, live, place))


def _enter(live: LiveBytes, place: Segment, module: nn.Module, given: Any) -> None:
    live.segment = (live.segment[0], "forward", *place)


def _leave(live: LiveBytes, place: Segment, module: nn.Module, given: Any, output: Tensor) -> None:
    part = live.segment[0]

    def begin_backward(gradient: Tensor) -> None:
        live.segment = (part, "backward", *place)

    if place == ("last", 0):
        live.segment = (part, "head")
    if output.requires_grad:
        output.register_hook(begin_backward)


def locals_of(tensors: Iterable[Any]) -> Iterator[Tensor]:
    """Yield what this rank holds of tensors; what is none is left out."""
    for one in tensors:
        if isinstance(one, DTensor):
            yield one._local_tensor
        elif isinstance(one, Tensor):
            yield one


def _gathered(model: nn.Module) -> Iterator[Tensor]:
    """Yield the whole gradients that FSDP has not divided yet."""
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        group = module._get_fsdp_state()._fsdp_param_group
        for one in group.fsdp_params if group is not None else ():
            whole = getattr(one, "_unsharded_param", None)
            yield from locals_of([one.unsharded_accumulated_grad, None if whole is None else whole.grad])
