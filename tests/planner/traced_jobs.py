"""What real processes do in the tests of traces: whet's own trainer on a small decoder, with its allocator watched."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from whet.core.workload import TrainingWorkload
from whet.parallel.division import division_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.rank_trainer import RankTrainer
from whet.parallel.ranks import Ranks
from whet.planner.layout import Layout, Work
from whet.planner.model_shape import ModelShape
from whet.planner.tracing.live_bytes import LiveBytes
from whet.planner.tracing.trace import as_traced
from whet.planner.tracing.traced_decoder import loss_of, model_of, wrap_layers

STEADY = "the step that is judged"

Sizes = dict[str, Any]
STEPS = 3  # of which the last one is judged: the second has rebuilt DDP's buckets, and the state is there


def counted_peaks(ranks: Ranks, shape: Sizes, layouts: list[Sizes], work: Sizes) -> list[int]:
    """Return the most bytes of tensors that live at once in the third step, of each of several layouts."""
    found = []
    for layout in layouts:
        with LiveBytes() as live:
            step = _made(ranks, shape, layout, work)
            for _ in range(STEPS - 1):
                step()
            live.begin()
            step()
            found.append(max(peak for peak, _ in live.peaks.values()))
            del step
    return found


def allocated_peak(ranks: Ranks, shape: Sizes, layout: Sizes, work: Sizes) -> int:
    """Return the most bytes that torch's allocator of the CPU held in the third step, where one thread has all."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        step = _made(ranks, shape, layout, work)
        for number in range(STEPS):
            with record_function(STEADY if number == STEPS - 1 else "before"):
                step()
    return _peak(found)


def _made(ranks: Ranks, shape: Sizes, layout: Sizes, work: Sizes) -> Callable[[], object]:
    """Return what makes a step of whet's own trainer."""
    made, at, sizes = Layout.model_validate(layout), Work.model_validate(work), ModelShape.model_validate(shape)
    traced = as_traced(sizes, made)
    num = made.num_micro_batches(at)
    division = division_of(ParallelPlan.model_validate(traced.keys), ranks, torch.device("cpu"))
    model = model_of(sizes)
    wrap_layers(model, made.recompute)
    division.share(model)
    ids = torch.zeros(made.micro_batch_size * num, at.sequence_length, dtype=torch.int64)
    batch = {"ids": ids, "targets": ids}
    workload = TrainingWorkload(
        model=model,
        loss=_autocast_loss if traced.autocasts else _loss,
        optimizer=division.optimizer(lambda parameters: torch.optim.AdamW(parameters, fused=True)),
        batches=[batch],
        clip_norm=1.0,
    )
    return partial(RankTrainer(workload, division, _count, num_parts=num).step_on, [batch])


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
