"""Make the steps of a run on one process, or on several together: what they share, add up and agree on."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.batch_parts import num_samples_of, rows_of_batch
from whet.core.workload.training import Trainer
from whet.errors import RecipeError, WhetError
from whet.measure.machine import describe
from whet.parallel.clipping import local_of
from whet.parallel.division import Division
from whet.parallel.pieces import whole_of
from whet.parallel.pipeline.gathering import gathered
from whet.parallel.pipeline.pipeline_trainer import PipelineTrainer
from whet.parallel.pipeline.stages import stages_of
from whet.parallel.rank_trainer import RankTrainer
from whet.techniques.applied import still_to_apply
from whet.techniques.mechanisms.packing.packing import IGNORED
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.prepared_trainer import PreparedTrainer, updates_plainly
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training.accumulation import ACCUMULATION
from whet.trainer.communication import Communication
from whet.trainer.model import Batch
from whet.trainer.plan_checks import check_plan
from whet.trainer.setup import SetUp
from whet.trainer.staged import arguments_of
from whet.trainer.stops import Stop


class Together:
    """Do what the processes of a run do together. One process alone does it by itself."""

    def __init__(self, setup: SetUp, prepared: PreparedTrainer, division: Division) -> None:
        self._setup, self._trainer, self._division = setup, prepared.trainer, division
        self.communication = Communication(prepared.trainer, division)

    def next_batches(self) -> list[Any]:
        """Return this process's rows of the next step, where each process has got its own.

        Raises:
            TargetError: They cannot be read here.
            RanksError: They cannot be read by another process.
        """
        if self._division.is_alone:
            return self._trainer.next_batches()
        error: WhetError | None = None
        batches: list[Any] = []
        try:
            batches = self._trainer.next_batches()
        except WhetError as failed:
            error = failed
        [faults] = self._division.total_of_all([error is not None])
        if faults:  # each process learns which one it was
            self._division.ranks.all_succeed("the batches", partial(_raised, error))
        return batches

    def tokens(self, batches: list[Any]) -> int:
        """Return the tokens of a step, of all processes, that have a loss."""
        [total] = self._division.total([self._setup.data.tokens_of(batches)])
        return int(total)

    def agreed_end(self, stop: Stop, *, is_over: bool) -> bool:
        """Return whether the run is over for all, by the first process's clock; a signal to one ends all."""
        if self._division.is_alone:
            return is_over
        is_first = self._division.ranks.is_first
        asked, over, *signals = self._division.total_of_all(
            [stop.number is not None, is_over and is_first, *(stop.number == one for one in Stop.SIGNALS)]
        )
        if asked:
            stop.number = next(one for one, number in zip(Stop.SIGNALS, signals, strict=True) if number)
        return bool(over)

    def scores(self, batches: Sequence[Batch]) -> dict[str, float]:
        """Return the scores of held-out batches, of each of which a process computes its rows."""
        model, total = self._setup.model, None
        if isinstance(self._trainer, PipelineTrainer):
            return model.scored(self._sums_of_stages(self._trainer, batches))
        for batch in batches:
            mine, counts = self._own_rows(batch)
            found = torch.tensor(model.tally(self._trainer.model, mine), dtype=torch.float64)
            found = found if counts else torch.zeros_like(found)
            total = found if total is None else total + found
        assert total is not None
        return model.scored(self._division.total(total.tolist()))

    def _own_rows(self, batch: Batch) -> tuple[Batch, bool]:
        """Return this process's rows of a batch, and whether they count.

        A process without a row computes one that does not count: all must call a sharded model equally often.
        """
        rows = self._setup.share.of(num_samples_of(batch))
        counts = rows.start < rows.stop
        return rows_of_batch(batch, rows if counts else slice(0, 1)), counts

    def _sums_of_stages(self, trainer: PipelineTrainer, batches: Sequence[Batch]) -> list[float]:
        """Return what is summed over held-out batches, which only the processes of the last stage know at first."""
        found: list[list[float]] = []
        for batch in batches:
            mine, counts = self._own_rows(batch)
            sums = trainer.tally(self._setup.model.tally, mine)
            if sums is not None and counts and self._division.tensor_rank == 0:
                found.append(sums)
        told = self._division.ranks.gather("the held-out scores", found)
        return [sum(one) for one in zip(*(sums for of_rank in told for sums in of_rank), strict=True)]

    def go_on(self, ids: list[int], *, num_tokens: int, temperature: float, seed: int) -> list[int]:
        """Return the tokens with which the model goes on; see TrainedModel.go_on."""
        module = self._trainer.relay if isinstance(self._trainer, PipelineTrainer) else self._trainer.model
        return self._setup.model.go_on(module, ids, num_tokens=num_tokens, temperature=temperature, seed=seed)

    def is_finite(self) -> bool:
        """Return whether all weights of all processes are finite."""
        own = [local_of(p.detach()) for p in self._trainer.model.parameters()]
        norms = torch._foreach_norm([p for p in own if p.numel()], float("inf"))
        [faults] = self._division.total_of_all([sum(not torch.isfinite(norm) for norm in norms)])
        return faults == 0

    def whole_weights(self) -> dict[str, Tensor]:
        """Return the model's weights on the first process, joined from those of all, and none on the others."""
        found = {}
        for name, value in self._trainer.model.state_dict().items():
            whole = whole_of(value)
            if self._division.ranks.is_first or self._division.degrees.pipeline > 1:
                found[name] = whole.cpu() if whole is not value else value
        if self._division.degrees.pipeline == 1:
            return found
        return gathered({name: value.cpu() for name, value in found.items()}, self._division.ranks)


def _raised(error: WhetError | None) -> None:
    if error is not None:
        raise error


def together(setup: SetUp, workload: TrainingWorkload, division: Division) -> tuple[PreparedTrainer, Together]:
    """Return the trainer of a run with its recipe applied, and what the processes do together.

    Raises:
        RecipeError: A technique does not apply here.
        OptionError: The plan does not fit the model.
    """
    check_plan(setup, division)
    has_stages = division.degrees.pipeline > 1
    stages = stages_of(workload.model, division) if has_stages else []
    division.share(workload.model, stages, setup.model.fill)
    workload = replace(workload, optimizer=division.optimizer(workload.optimizer))
    # Of several processes, each weighs its parts itself, by the targets of all.
    steps = [step for step in setup.steps if division.is_alone or step.technique != ACCUMULATION]
    kind: Any = Trainer
    if not division.is_alone:
        most = setup.share.most(setup.config.batch.global_batch_size)
        options: dict[str, Any] = {
            "division": division,
            "count": setup.model.num_targets,
            "num_parts": -(-most // setup.rows_at_once),
        }
        kind = partial(RankTrainer, **options)
        if has_stages:
            options |= {"stages": stages, "rows": most, "ignored": IGNORED}
            kind = partial(PipelineTrainer, arguments=arguments_of, loss=setup.model.summed_loss, **options)
    prepared = PreparedTrainer(workload, fitting(workload, steps), kind)
    return prepared, Together(setup, prepared, division)


def fitting(workload: TrainingWorkload, steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a recipe that change this training; what it does already is left out.

    Raises:
        RecipeError: A technique does not apply here.
    """
    parts = Parts(workload.model, workload.optimizer(workload.model.parameters()), workload.batches)
    changing, _ = still_to_apply(parts, steps, TRAINING_TABLE, describe())
    plain = updates_plainly(workload)
    for step in steps:
        if TRAINING_TABLE[step.technique].updates_early and not plain:
            raise RecipeError(
                f"{step.technique} updates before all gradients are there, so that they cannot be clipped; leave it "
                "out of the recipe, or set optimizer.max_norm to 0"
            )
    return changing
