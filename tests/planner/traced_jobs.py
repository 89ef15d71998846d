"""What real processes do in the tests of traces: whet's own trainer on a small decoder, with its allocator watched."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from whet.core.workload import TrainingWorkload
from whet.parallel.division import Division, division_of
from whet.parallel.pipeline.pipeline_trainer import PipelineTrainer
from whet.parallel.pipeline.stages import DecoderStage, stages_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.rank_trainer import RankTrainer
from whet.parallel.ranks import Ranks
from whet.planner.layout import Layout, Work
from whet.planner.model_shape import ModelShape
from whet.planner.tracing.trace import as_traced
from whet.planner.tracing.traced_decoder import loss_of, model_of, summed_loss, wrap_layers

STEADY = "the step that is judged"


def allocated_peak(ranks: Ranks, shape: dict[str, Any], layout: dict[str, Any], work: dict[str, Any]) -> int:
    """Return the most bytes that torch's allocator of the CPU held in the third step of a training."""
    made, at = Layout.model_validate(layout), Work.model_validate(work)
    traced = as_traced(made)
    num = at.global_batch_size // (made.data * made.micro_batch_size)
    keys = {**traced.keys, **({"pipeline_micro_batches": num} if made.pipeline > 1 else {})}
    division = division_of(ParallelPlan.model_validate(keys), ranks, torch.device("cpu"))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        model = model_of(ModelShape.model_validate(shape))
        wrap_layers(model, made.recompute)
        stages = stages_of(model, division) if made.pipeline > 1 else []
        division.share(model, stages)
        ids = torch.zeros(made.micro_batch_size * num, at.sequence_length, dtype=torch.int64)
        batch = {"ids": ids, "targets": ids}
        workload = TrainingWorkload(
            model=model,
            loss=_autocast_loss if traced.autocasts else _loss,
            optimizer=division.optimizer(lambda parameters: torch.optim.AdamW(parameters, fused=True)),
            batches=[batch],
            clip_norm=1.0,
        )
        trainer = _trainer(workload, division, stages, len(ids), num)
        for number in range(3):
            with record_function(STEADY if number == 2 else "before"):
                trainer.step_on([batch])
    return _peak(found)


def _trainer(
    workload: TrainingWorkload, division: Division, stages: list[DecoderStage], rows: int, num: int
) -> RankTrainer:
    if not stages:
        return RankTrainer(workload, division, _count, num_parts=num)
    return PipelineTrainer(
        workload,
        division,
        _count,
        stages=stages,
        arguments=lambda batch: (batch["ids"], {}),
        loss=lambda logits_BTV, targets_BT: summed_loss(logits_BTV, targets_BT, 1.0),
        ignored=-100,
        rows=rows,
    )


def _count(batch: dict[str, Tensor]) -> int:
    return batch["targets"].numel()


def _loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return loss_of(model, batch["ids"])


def _autocast_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    def called(ids_BT: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found: Tensor = model(ids_BT)
        return found.float()

    return loss_of(called, batch["ids"])


def _peak(found: profile) -> int:
    """Return the largest sum of allocations, less what was freed, from the start of the steady step on."""
    results: Any = found.profiler.kineto_results
    queue, events = list(results.experimental_event_tree()), []
    while queue:
        one = queue.pop()
        queue += one.children
        if one.tag == torch._C._profiler._EventType.Allocation:
            events.append((one.start_time_ns, one.extra_fields.alloc_size))
        elif one.name == STEADY:
            began = one.start_time_ns
    held, most = 0, 0
    for at, size in sorted(events):
        held += size
        if at >= began:
            most = max(most, held)
    return most
