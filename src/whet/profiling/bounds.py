"""Name what can hold a program back, for every profiler, and advise what to do about it."""

from enum import StrEnum

BOUND_SHARE = 0.25
"""Say that work other than computing bounds a step if it takes this share: steps without it are a third faster."""


class Bound(StrEnum):
    """Name what holds a program back. The value is the name in reports and JSON."""

    COMPUTE = "compute-bound"
    BANDWIDTH = "bandwidth-bound"
    GPU = "GPU-bound"
    CPU = "CPU-bound"
    ONE_CORE = "one core busy"
    OVERHEAD = "overhead-bound"  # calling operators takes longer than their work
    LAUNCH = "launch-bound"  # the GPU waits for the CPU to launch kernels
    HOST = "host-bound"  # no operator runs
    LOOP = "loop-bound"  # the training loop runs its own Python code, outside all phases
    SYNC = "sync-bound"
    STALL = "stalled"
    INPUT = "input-bound"
    WAITING = "waiting"
    COPY = "copy-bound"
    COMMUNICATION = "communication-bound"
    MEMORY_GROWING = "memory-growing"
    TOO_FEW_STEPS = "not enough steps"
    UNKNOWN = "not known"


ROOFLINE = (Bound.COMPUTE, Bound.BANDWIDTH, Bound.OVERHEAD)
"""A layer can be bound by these."""

ADVICE = {
    Bound.COMPUTE: "compute less, and in smaller dtypes (bf16, int8); `whet tune` tries techniques on a model",
    Bound.BANDWIDTH: "move fewer bytes: smaller dtypes, fusion (torch.compile), larger batches",
    Bound.GPU: "make the slowest kernels faster or fewer: a lower precision, fusion (torch.compile), layouts",
    Bound.CPU: "make the slowest operators faster or fewer: a lower precision, fusion (torch.compile), threads",
    Bound.ONE_CORE: "let more cores work: vectorise Python loops, use larger operators, load data in workers",
    Bound.OVERHEAD: "call fewer and larger operators: torch.compile, larger batches, less Python around each "
    "operator; on a GPU also CUDA graphs",
    Bound.LAUNCH: "launch less from Python: torch.compile, CUDA graphs (mode='reduce-overhead'), larger batches, "
    "foreach or fused optimisers, fewer synchronisations (.item(), .cpu())",
    Bound.HOST: "find what runs between the operators: record with with_stack=True, or use a sampling profiler",
    Bound.LOOP: "profile the loop's own code: logging, metrics, checkpoints, work that could be done once",
    Bound.SYNC: "read values less often: keep losses as tensors, and call item() once in many steps",
    Bound.STALL: "look at the timeline for what the streams wait for: events, host callbacks, other ranks; where "
    "only a part of the trace was kept, look at the whole",
    Bound.INPUT: "load ahead: more DataLoader workers, pin_memory, prefetching, cheaper transforms, data decoded once "
    "and kept",
    Bound.WAITING: "wait less: load data in worker processes, prefetch it, and keep it in memory",
    Bound.COPY: "copy less: keep data on the GPU, pin memory and copy with non_blocking=True beside compute",
    Bound.COMMUNICATION: "hide or shrink communication: overlap it with the backward pass, larger buckets, "
    "gradient accumulation, a lower precision on the wire; see that no rank is late: collectives wait for the last",
    Bound.MEMORY_GROWING: "look for what is kept of each step: losses with their graphs (keep loss.item()), outputs, "
    "caches that never end",
    Bound.TOO_FEW_STEPS: "let the loop run for longer",
}
"""Say what to do about each bound, where that is possible without knowing the program."""
