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
from whet.errors import OptionError, RecipeError, WhetError
from whet.measure.machine import describe
from whet.parallel.clipping import local_of
from whet.parallel.division import Division
from whet.parallel.pieces import whole_of
from whet.parallel.rank_trainer import RankTrainer
from whet.techniques.applied import still_to_apply
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.prepared_trainer import PreparedTrainer, updates_plainly
from whet.techniques.training import TRAINING_TABLE
from whet.trainer.model import Batch
from whet.trainer.setup import ACCUMULATION, SetUp
from whet.trainer.stops import Stop

# What leaves a divided model's modules as they are, or was held to the steps of one process with it.
_BESIDE_DIVIDED_MATRICES = frozenset(
    {
        ACCUMULATION,
        "adamw_8bit",
        "allocator",
        "autocast",
        "checkpointing",
        "compile",
        "cudnn_benchmark",
        "fused_optimizer",
        "loader",
        "matmul_precision",
        "optimizer_in_backward",
        "prefetch",
        "set_to_none",
        "threads",
    }
)


class Together:
    """Do what the processes of a run do together. One process alone does it by itself."""

    def __init__(self, setup: SetUp, prepared: PreparedTrainer, division: Division) -> None:
        self._setup, self._trainer, self._division = setup, prepared.trainer, division

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
        model, share, total = self._setup.model, self._setup.share, None
        for batch in batches:
            rows = share.of(num_samples_of(batch))
            # A process without a row computes one that does not count: all must call a sharded model equally often.
            mine = rows_of_batch(batch, rows if rows.start < rows.stop else slice(0, 1))
            found = torch.tensor(model.tally(self._trainer.model, mine), dtype=torch.float64)
            found = found if rows.start < rows.stop else torch.zeros_like(found)
            total = found if total is None else total + found
        assert total is not None
        return model.scored(self._division.total(total.tolist()))

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
            if self._division.ranks.is_first:
                found[name] = whole.cpu() if whole is not value else value
        return found


def _raised(error: WhetError | None) -> None:
    if error is not None:
        raise error


def together(setup: SetUp, workload: TrainingWorkload, division: Division) -> tuple[PreparedTrainer, Together]:
    """Return the trainer of a run with its recipe applied, and what the processes do together.

    Raises:
        RecipeError: A technique does not apply here.
        OptionError: The plan does not fit the model.
    """
    if division.degrees.tensor > 1:
        _check_beside_divided_matrices(setup, division)
    division.share(workload.model)
    workload = replace(workload, optimizer=division.optimizer(workload.optimizer))
    # Of several processes, each weighs its parts itself, by the targets of all.
    steps = [step for step in setup.steps if division.is_alone or step.technique != ACCUMULATION]
    kind: Any = Trainer
    if not division.is_alone:
        most = setup.share.most(setup.config.batch.global_batch_size)
        parts = -(-most // setup.rows_at_once)
        kind = partial(RankTrainer, division=division, count=setup.model.num_targets, num_parts=parts)
    prepared = PreparedTrainer(workload, fitting(workload, steps), kind)
    return prepared, Together(setup, prepared, division)


def _check_beside_divided_matrices(setup: SetUp, division: Division) -> None:
    """Check that nothing else changes the matrices that tensor parallelism divides, or needs whole ones.

    Raises:
        RecipeError: A technique does.
        OptionError: Pruning does, or what is asked for needs a technique.
    """
    if division.plan.async_tensor_parallel and all(step.technique != "compile" for step in setup.steps):
        raise OptionError(
            "parallel.async_tensor_parallel changes compiled models alone; add the technique compile to the recipe, or "
            "leave it out"
        )
    for step in setup.steps:
        if step.technique not in _BESIDE_DIVIDED_MATRICES:
            raise RecipeError(
                f"{step.technique} does not bear matrices that processes share (parallel.tensor_parallel_degree); "
                "leave it out of the recipe, or divide the work otherwise"
            )
    if setup.config.prune is not None and setup.config.prune.kind == "unstructured":
        raise OptionError(
            "[prune] of single weights needs whole matrices, and parallel.tensor_parallel_degree divides them; leave "
            "one of them out"
        )


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
