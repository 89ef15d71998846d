"""Divide a training of one's own loop among processes: whet.parallelize."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from whet.core.workload.batch_parts import num_samples_of, rows_of_batch
from whet.core.workload.training import seed_everything
from whet.errors import OptionError
from whet.measure.device import device_type_of
from whet.parallel.division import Division, division_of
from whet.parallel.joining import joined, own_device
from whet.parallel.plan import ParallelPlan
from whet.parallel.rank_trainer import seed_of
from whet.parallel.summed_step import CountsTargets, SummedStep


class Parallel:
    """Hold the parts of a loop that several processes make together; see parallelize.

    Attributes:
        model: What the loop calls.
        optimizer: What updates this process's part of it.
        device: The device of this process.
        rank: This process, counted from 0.
        world_size: How many there are.
    """

    def __init__(self, division: Division, model: nn.Module, optimizer: Optimizer) -> None:
        self.division = division
        self.model, self.optimizer, self.device = model, optimizer, division.device
        self.rank, self.world_size = division.ranks.rank, division.ranks.world_size

    @property
    def is_first(self) -> bool:
        """Return whether this process writes files and speaks to people for all."""
        return self.division.ranks.is_first

    def rows(self, batch: Any) -> Any:
        """Return this process's rows of a whole batch, which all processes have read.

        Raises:
            OptionError: There are fewer rows than processes that share them.
        """
        size, share = num_samples_of(batch), self.division.rows
        if size < share.number:
            raise OptionError(f"a batch of {size} rows is shared by {share.number} processes; make it larger")
        return rows_of_batch(batch, share.of(size))

    def micro_batches(self, batch: Any, count: CountsTargets = num_samples_of, *, num_parts: int = 1) -> SummedStep:
        """Divide this process's rows of a step into micro-batches, for a loop over them.

            step = parallel.micro_batches(parallel.rows(batch), count)
            for part in step:
                step.backward(loss(parallel.model, part))

        After the loop the gradients are those of the mean over all targets of all processes, and step.loss() is that
        mean.

        Args:
            batch: A tensor, or tuples, lists and dicts of tensors whose first dimension is that of the samples.
            count: Counts the targets of a micro-batch, which its loss is the mean of; its samples, if not given.
            num_parts: The micro-batches; equally many on each process.
        """
        return SummedStep(self.division, self.model, batch, num_parts, count)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the gradients by the norm over what all processes hold, and return the norm that they had."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return self.division.clip(parameters, max_norm)


@contextmanager
def parallelize(
    model: nn.Module, optimizer: Optimizer, plan: ParallelPlan | None = None, *, seed: int = 0
) -> Iterator[Parallel]:
    """Divide a model and its optimiser among the processes that torchrun started, for the block.

        with whet.parallelize(model, optimizer, whet.ParallelPlan(zero_stage=2)) as parallel:
            for batch in loader:
                ...

    Call it once the model is on its device and before the first step, in the place of init_process_group; make
    schedules of the learning rate afterwards, of parallel.optimizer. Each process must have made the same model, from
    the same seed or the same file. Without torchrun, one process makes all steps. Where one process fails, all end.

    Args:
        model: The model; the loop calls parallel.model in its place.
        optimizer: Its optimiser, which has made no step yet.
        plan: How the work is divided; by default each process holds a copy of the model.
        seed: Decides what each process draws, such as dropout.

    Raises:
        OptionError: The plan fits neither the model nor the number of processes.
        RanksError: Another process failed.
    """
    plan = plan or ParallelPlan()
    if distributed.is_initialized():
        raise OptionError("whet.parallelize joins the processes itself; leave init_process_group out")
    if plan.pipeline_parallel_degree > 1:
        raise OptionError(
            "whet.parallelize does not divide the layers of a loop's own model; set pipeline_parallel_degree to 1, or "
            "train by whet train"
        )
    if optimizer.state:
        raise OptionError("the optimiser has made steps already; call whet.parallelize before the first one")
    kind = device_type_of(model.parameters())
    with joined(kind, plan.timeout_s) as ranks:
        division = ranks.all_succeed("the plan", lambda: division_of(plan, ranks, own_device(kind, ranks)))
        made = ranks.all_succeed("the division", lambda: _divided(division, model, optimizer))
        seed_everything(seed_of(seed, division.drawing_rank))
        yield Parallel(division, division.called(model), made)


def _divided(division: Division, model: nn.Module, optimizer: Optimizer) -> Optimizer:
    """Divide a model in place, and return the optimiser of the parameters that it has then."""
    name_of = {id(p): name for name, p in model.named_parameters()}
    names = []
    for group in optimizer.param_groups:
        names.append([name_of.get(id(p)) for p in group["params"]])
        if None in names[-1]:
            raise OptionError("the optimiser updates a parameter that the model does not have; give the whole model")
    division.share(model)
    now = dict(model.named_parameters())
    for group, own in zip(optimizer.param_groups, names, strict=True):
        group["params"] = [now[name] for name in own if name is not None]
    return division.optimizer(_given(optimizer))(model.parameters())


def _given(optimizer: Optimizer) -> Any:
    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return optimizer

    return make
