"""Send DDP's gradients in fewer bytes, see what that changes in them, and refuse what it breaks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from whet.errors import ModelError
from whet.parallel.machine_sums import done
from whet.parallel.plan import ParallelPlan
from whet.parallel.powersgd import PowerSGD, Sums

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_LATE = 1.5
_NAME = "whet_compression"  # of the attribute of a model that DDP wraps


@dataclass(frozen=True)
class Sample:
    """Compare the gradient of a step, as it was averaged over processes, with the exact average.

    Attributes:
        step: The step, from 1 on.
        relative_error: The norm of their difference, relative to that of the exact one.
        cosine: The cosine of the angle between them.
    """

    step: int
    relative_error: float
    cosine: float


class Compression:
    """Average the gradients of DDP's buckets over processes as the plan says.

    Attributes:
        step: The steps that were made, those before a resumption too.
        samples: What compression changed in the first, 10th, 100th compressed step of this start, and so on.
    """

    def __init__(self, model: nn.Module, plan: ParallelPlan, group: Any, sums: Sums | None) -> None:
        """Prepare for a model whose copies the processes of a group have.

        Args:
            sums: Sums a vector over them; None for an all-reduce.
        """
        self._plan, self._group, self._size = plan, group, group.size()
        self._dtype, self._sums = _DTYPES.get(plan.compression), sums or self._summed_plainly
        self._powersgd: PowerSGD | None = None
        if plan.compression == "powersgd":
            trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
            self._powersgd = PowerSGD(trained, plan.powersgd_rank, self._sums, self._size)
        self._compresses_after = 0 if self._powersgd is None else self._plan.powersgd_start_step
        self.step = self._num_compressed = 0
        self.samples: list[Sample] = []
        self._products: list[Tensor] = []  # [3], of buckets: exact * exact, exact * sent, sent * sent
        self._differences: list[Tensor] = []
        self._largest: list[Tensor] = []  # [2], of buckets: of what was received, and of this process's gradient

    @property
    def num_whole(self) -> int:
        """Return how many steps from now on send gradients whole."""
        return max(self._compresses_after - self.step, 0)

    def average(self, bucket: Any) -> Future[Tensor]:
        """Return the average of a bucket over processes; the bucket's memory is used for it."""
        buffer = bucket.buffer()
        if self._plan.compression == "none" or self.num_whole or not _is_power_of_ten(self._num_compressed + 1):
            return self._sent(bucket)
        exact = buffer / self._size
        distributed.all_reduce(exact, group=self._group)
        exact, sent = exact.double(), self._sent(bucket).wait().double()
        self._products.append(torch.stack([exact @ exact, exact @ sent, sent @ sent]))
        self._differences.append((exact - sent).square().sum())
        return done(buffer)

    def _sent(self, bucket: Any) -> Future[Tensor]:
        buffer: Tensor = bucket.buffer()
        if self._powersgd is not None and not self.num_whole:
            self._powersgd.average(bucket.parameters(), bucket.gradients())
            return done(buffer)
        if self._dtype is None:
            return self._sums(buffer.div_(self._size))
        # Divided first, so that the sum is no larger than what is sent.
        small = torch.div(buffer, self._size, out=torch.empty_like(buffer, dtype=self._dtype))

        def received(found: Future[Tensor]) -> Tensor:
            found.value()
            infinity = float("inf")
            self._largest.append(torch.stack([torch.linalg.vector_norm(x, infinity).double() for x in (small, buffer)]))
            return buffer.copy_(small)

        return self._sums(small).then(received)

    def _summed_plainly(self, vector: Tensor) -> Future[Tensor]:
        work = distributed.all_reduce(vector, group=self._group, async_op=True)
        found: Future[Tensor] = work.get_future().then(lambda _: vector)
        return found

    def end_step(self) -> None:
        """Note what compression changed in the gradients of a step, once they are averaged.

        Raises:
            ModelError: They are not finite, and were before they were compressed.
        """
        self._num_compressed += not self.num_whole
        self.step += 1
        if self._largest:
            received, own = torch.stack(self._largest).T.isfinite().all(1).tolist()
            self._largest.clear()
            if not received:
                self._refuse(was_finite=own)
        if self._products:
            exact, both, sent = torch.stack(self._products).sum(0).tolist()
            difference = float(torch.stack(self._differences).sum())
            self._products.clear()
            self._differences.clear()
            if exact > 0:
                cosine = both / (exact * sent) ** 0.5 if sent > 0 else 0.0
                self.samples.append(Sample(self.step, (difference / exact) ** 0.5, cosine))

    def _refuse(self, *, was_finite: bool) -> None:
        """Raise ModelError where all processes had finite gradients; others are the loss's own fault."""
        faults = torch.tensor(float(not was_finite))
        distributed.all_reduce(faults, group=self._group)
        if not faults:
            assert self._dtype is not None
            name, largest = self._plan.compression, torch.finfo(self._dtype).max
            raise ModelError(
                f"parallel.compression {name} cannot hold the gradients of this step: they are beyond {largest:.5g}; "
                f"{'set it to bf16, or leave it out' if name == 'fp16' else 'leave it out'}"
            )

    @property
    def bound(self) -> float:
        """Return the relative error above which compression changes more than it should.

        Casts round by one epsilon at most; more means that gradients are below the range, or cancel each other. What
        PowerSGD sends late is an error of its step. Of gradients that have nothing in common from step to step, that
        is at most 1.41; more means that what is late outweighs the step's own gradient.
        """
        return _MOST_LATE if self._dtype is None else torch.finfo(self._dtype).eps

    def state(self) -> dict[str, Tensor] | None:
        """Return what this process remembers for the next steps, by names; None where nothing must be remembered."""
        return None if self._powersgd is None else self._powersgd.state()

    def restore(self, step: int, state: Mapping[str, Tensor] | None) -> None:
        """Go on after so many steps.

        Args:
            state: What this process remembered; None where that is lost, so that PowerSGD begins anew.
        """
        self.step = step
        if self._powersgd is None:
            return
        if state is None:
            self._compresses_after = step + self._plan.powersgd_start_step
        else:
            self._powersgd.restore(state)


def _average(state: Compression, bucket: distributed.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    return state.average(bucket)


def compress(model: DistributedDataParallel, plan: ParallelPlan, group: Any, sums: Sums | None) -> None:
    """Have DDP average its gradients as a plan says; see Compression."""
    found = Compression(model.module, plan, group, sums)
    model.register_comm_hook(found, _average)
    setattr(model, _NAME, found)


def compression_of(model: nn.Module) -> Compression | None:
    """Return what averages the gradients of what a loop calls; None where the plan asks for nothing."""
    found: Compression | None = getattr(model, _NAME, None)
    return found


def _is_power_of_ten(number: int) -> bool:
    return number > 0 and str(number).strip("0") == "1"
