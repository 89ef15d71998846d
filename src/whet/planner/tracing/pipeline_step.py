"""Make steps of one rank that holds some layers of a decoder, by the schedule that whet train runs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from whet.models.decoder.reference import Decoder
from whet.parallel.division import Division
from whet.parallel.pipeline.schedules import schedule_of
from whet.parallel.pipeline.stages import DecoderStage
from whet.planner.tracing.live_bytes import LiveBytes
from whet.planner.tracing.step import RankStep
from whet.planner.tracing.traced_decoder import summed_loss


class StageStep(RankStep):
    """Make steps of the stages of one rank: all micro-batches, clipping, the update."""

    def __init__(
        self,
        division: Division,
        model: Decoder,
        optimizer: Optimizer,
        stages: Sequence[DecoderStage],
        micro_batch_BT: Tensor,
        num: int,
        *,
        live: LiveBytes,
    ) -> None:
        """Prepare to make steps.

        Args:
            stages: The stages of this rank, divided already.
            micro_batch_BT: The token ids of one micro-batch.
            num: The micro-batches of a step.
        """
        super().__init__(division, model, optimizer, [], autocasts=False, live=live)
        rows, length = micro_batch_BT.shape
        self._ids_BT = torch.cat([micro_batch_BT] * num)
        self._is_first, self._length = stages[0].is_first, length
        config = model.config
        self._schedule: Any = schedule_of(
            division.plan,
            stages,
            [division.called(stage) for stage in stages],
            summed_loss,
            division.stages_group,
            rows=rows,
            length=length,
            num_held=division.stream.num_held(length),
            sizes=(config.hidden_size, config.vocab_size),
            dtype=division.computed_dtype(torch.float32),
            device=division.device,
        )

    def wrapped(self, model: nn.Module) -> nn.Module:
        """Return the model itself: its stages are called one by one."""
        return model

    def _gradients(self) -> None:
        self.live.phase = "pipeline"
        given = (self._ids_BT,) if self._is_first else ()
        losses: list[Tensor] = []
        self._schedule.step(
            *given,
            target=self._ids_BT,
            losses=losses,
            return_outputs=False,
            loss_kwargs={"factor": 1 / self._ids_BT.numel()},
            length=self._length,
        )
