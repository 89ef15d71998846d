"""Run the steps of a training whose layers several processes share, so that they are those of one process."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from whet.core.workload import TrainingWorkload
from whet.core.workload.batch_parts import num_samples_of, parts_of
from whet.core.workload.training import Change
from whet.models.decoder.reference import Decoder
from whet.parallel.clipping import local_of
from whet.parallel.division import Division
from whet.parallel.pipeline.relay import KnownLogits, Relay
from whet.parallel.pipeline.schedules import check_micro_batches, schedule_of
from whet.parallel.pipeline.stages import DecoderStage, later_copies
from whet.parallel.rank_trainer import RankTrainer
from whet.parallel.summed_step import CountsTargets

Arguments = Callable[[Any], tuple[Tensor, dict[str, Tensor]]]
"""Return the token ids [B, T] of a batch, and what else each stage takes by name: positions, a mask."""
SumsLosses = Callable[[Tensor, Tensor], Tensor]
"""Take logits [B, T, V] and targets [B, T], and return the sum of the losses of the targets that count."""


class PipelineTrainer(RankTrainer):
    """Make optimiser steps with the processes that hold the other layers, and with those that see other rows.

    Each part of a batch goes through the stages in micro-batches of equally many rows; those that lack rows get some
    without targets. A batch is a dict with "targets" [B, T].
    """

    def __init__(
        self,
        workload: TrainingWorkload,
        division: Division,
        count: CountsTargets,
        *,
        stages: Sequence[DecoderStage],
        arguments: Arguments,
        loss: SumsLosses,
        ignored: int,
        rows: int,
        num_parts: int = 1,
        change: Change | None = None,
    ) -> None:
        """Begin a training run.

        Args:
            stages: Those of this process, divided among the processes that see other rows.
            ignored: What stands in the place of a target that does not count.
            rows: The most rows of a step that a process sees.
            num_parts: The parts of a step that go through the stages one after the other.

        Raises:
            OptionError: The rows are too few for the schedule.
        """
        number = check_micro_batches(division.plan, -(-rows // num_parts))
        self._rows = -(-rows // num_parts // number)  # of a micro-batch
        self._stages, self._arguments, self._sum, self._ignored = stages, arguments, loss, ignored
        super().__init__(workload, division, count, num_parts=num_parts, change=change)
        decoder = self.model
        assert isinstance(decoder, Decoder)
        self._group = division.stages_group
        self._sizes = decoder.config.hidden_size, decoder.config.vocab_size
        self._dtype = division.computed_dtype(next(decoder.parameters()).dtype)
        self._copies = list(later_copies(decoder, division).values())
        self._tied = decoder.lm_head.weight if self._has_end and decoder.config.tie_word_embeddings else None
        self._called = [division.called(stage) for stage in stages]
        self._schedule: Any = None
        self._shape: tuple[int, int] = (0, 0)
        self.relay = Relay(stages, self._group, division.stream, self._sizes, self._dtype)
        # NCCL makes the connections of a group in its first collective, which all must call.
        distributed.all_reduce(torch.zeros((), device=division.device), group=self._group)

    @property
    def _has_end(self) -> bool:
        return any(stage.is_first or stage.is_last for stage in self._stages)

    def wrapped(self) -> nn.Module:
        return self.model

    def compute(self, batches: list[Any], *, updates: bool = True) -> Tensor:
        """Sum the gradients of one step over all processes, update if asked, and return the loss of all rows."""
        self.optimizer.zero_grad()
        parts = [part for batch in batches for part in parts_of(batch, self._num_parts)]
        [total] = self.division.total([sum(self._count(part) for part in parts)])
        missing = self._num_parts * len(batches) - len(parts)  # all processes run the schedule equally often
        parts += [self._without_targets(parts[0])] * missing
        # Processes that see other rows average their gradients, hence their number.
        factor = self.division.degrees.data / total
        losses: list[Tensor] = []
        for part in parts:
            losses += self._through(part, factor)
        if not self.division.sums_in_backward and self.division.degrees.data > 1:
            self._average()
        self._sum_tied()
        loss = sum(float(one) for one in losses) / self.division.degrees.data
        [whole] = self.division.total_of_stages(self.division.total([loss]))
        if updates:
            self.update()
        return torch.tensor(whole, dtype=torch.float64)

    def _through(self, part: Any, factor: float) -> list[Tensor]:
        """Sum the gradients of a part, and return the losses of its micro-batches where the last stage is."""
        filled = self._filled(part)
        ids_BT, named = self._arguments(filled)
        if self._shape != ids_BT.shape:
            self._schedule, self._shape = self._made(ids_BT.shape[1]), (ids_BT.shape[0], ids_BT.shape[1])
        losses: list[Tensor] = []
        given = (ids_BT,) if self._stages[0].is_first else ()
        self._schedule.step(
            *given,
            target=filled["targets"],
            losses=losses,
            return_outputs=False,
            loss_kwargs={"factor": factor},
            length=ids_BT.shape[1],
            **named,
        )
        return [one.detach() for one in losses]

    def _made(self, length: int) -> Any:
        return schedule_of(
            self.division.plan,
            self._stages,
            self._called,
            self._scaled_loss,
            self._group,
            rows=self._rows,
            length=length,
            num_held=self.division.stream.num_held(length),
            sizes=self._sizes,
            dtype=self._dtype,
            device=self.division.device,
        )

    def _scaled_loss(self, logits_BTV: Tensor, targets_BT: Tensor, factor: float) -> Tensor:
        return self._sum(logits_BTV, targets_BT) * factor

    def _filled(self, part: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a part with rows behind its own that have no targets, so that micro-batches are equal."""
        missing = self._rows * self.division.plan.num_micro_batches - num_samples_of(part)
        if not missing:
            return part
        more = self._without_targets({name: x[:1].expand(missing, *x.shape[1:]) for name, x in part.items()})
        return {name: torch.cat([x, more[name]]) for name, x in part.items()}

    def _without_targets(self, part: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**part, "targets": torch.full_like(part["targets"], self._ignored)}

    @torch.no_grad()
    def _average(self) -> None:
        """Average the gradients over the processes that see other rows."""
        gradients = [local_of(p.grad) for p in self._parameters if p.grad is not None]
        works = [distributed.all_reduce(one, group=self.division.data_group, async_op=True) for one in gradients]
        for work in works:
            work.wait()
        torch._foreach_div_(gradients, float(self.division.degrees.data))

    @torch.no_grad()
    def _sum_tied(self) -> None:
        """Add the gradients of an embedding that is the head too, of which both ends of the model hold a copy."""
        if self._tied is None:
            return
        assert self._tied.grad is not None
        mine = local_of(self._tied.grad)
        theirs = torch.empty_like(mine)
        ranks = distributed.get_process_group_ranks(self._group)
        peer = ranks[0] if self._copies else ranks[-1]
        sends = distributed.P2POp(distributed.isend, mine.contiguous(), peer, self._group)
        receives = distributed.P2POp(distributed.irecv, theirs, peer, self._group)
        for work in distributed.batch_isend_irecv([sends, receives]):
            work.wait()
        mine += theirs

    def clipped(self, max_norm: float) -> Tensor:
        return self.division.clip(self._parameters, max_norm, copies=self._copies)

    def tally(self, tally: Callable[[nn.Module, Any], list[float]], batch: Any) -> list[float] | None:
        """Return what is summed over held-out batches where the last stage is, and None elsewhere. All must call it."""
        ids_BT, named = self._arguments(batch)
        logits_BTV = self.relay.logits(ids_BT, **named)
        return None if logits_BTV is None else tally(KnownLogits(logits_BTV), batch)
