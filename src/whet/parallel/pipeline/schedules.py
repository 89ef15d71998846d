"""Choose in which order the stages of a process compute micro-batches."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whet.errors import OptionError
from whet.parallel.pipeline.stages import DecoderStage
from whet.parallel.plan import ParallelPlan


def check_micro_batches(plan: ParallelPlan, rows: int) -> int:
    """Return the micro-batches that go through the stages at a time.

    Args:
        rows: The most rows of a process that do.

    Raises:
        OptionError: They are too few for the schedule, which would wait for ever, or there are too few rows.
    """
    number, processes = plan.num_micro_batches, plan.pipeline_parallel_degree
    if number < processes:
        raise OptionError(
            f"parallel.pipeline_micro_batches is {number}, and {processes} processes need at least one each at a time; "
            f"set it to {processes} or more"
        )
    rounds = max(1, number // processes)
    if plan.is_interleaved and number % rounds:
        raise OptionError(
            f"parallel.pipeline_micro_batches is {number}, and {plan.pipeline_schedule} takes multiples of "
            f"{processes}; set it to {number // processes * processes}"
        )
    if rows < number:
        raise OptionError(
            f"{rows} rows of a process go through the stages at a time, and parallel.pipeline_micro_batches is "
            f"{number}; set it to {rows} or less, or set a larger batch.global_batch_size or batch.micro_batch_size"
        )
    return number


def schedule_of(
    plan: ParallelPlan,
    stages: Sequence[DecoderStage],
    called: Sequence[nn.Module],
    loss: Callable[..., Tensor],
    group: Any,
    *,
    rows: int,
    length: int,
    num_held: int,
    sizes: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> Any:
    """Return what runs micro-batches of so many rows and tokens through all stages, forward and backward.

    Args:
        called: What is called in the place of each stage, since it sums gradients over processes.
        loss: Called as loss(logits, targets, **given): the sum of a micro-batch's losses; they are added.
        group: The processes of the other stages.
        num_held: The tokens of a row's stream that this process holds.
        sizes: The widths of the stream and of the logits.
        dtype: Of the stream and of the logits.
    """
    # Slow to import: it brings PyTorch's compiler.
    from torch.distributed.pipelining import PipelineStage, schedules

    width, vocab_size = sizes

    def like(tokens: int, size: int) -> Tensor:  # without the shapes, torch would run a micro-batch to see them
        return torch.empty(rows, tokens, size, dtype=dtype, device="meta", requires_grad=True)

    stream_BTD, logits_BTV = like(num_held, width), like(length, vocab_size)
    ids_BT = torch.empty(rows, length, dtype=torch.int64, device="meta")
    made = [
        PipelineStage(
            module,
            stage.number,
            stage.num_stages,
            device,
            input_args=ids_BT if stage.is_first else stream_BTD,
            output_args=logits_BTV if stage.is_last else stream_BTD,
            group=group,
        )
        for stage, module in zip(stages, called, strict=True)
    ]
    number = plan.num_micro_batches
    # The loss is a sum already, so that gradients must not be divided by the number of micro-batches.
    kinds: dict[str, Any] = {
        "gpipe": schedules.ScheduleGPipe,
        "1f1b": schedules.Schedule1F1B,
        "interleaved_1f1b": schedules.ScheduleInterleaved1F1B,
        "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    }
    given: Any = made if plan.is_interleaved else made[0]
    return kinds[plan.pipeline_schedule](given, number, loss_fn=loss, scale_grads=False)
