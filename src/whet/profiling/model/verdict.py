"""Write the verdict in words: what bounds a program, how far it is from the limit, and what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass

from whet.measure.machine import Limits
from whet.profiling.bounds import ADVICE, Bound
from whet.profiling.model.diagnosis import diagnose, least_time_s
from whet.profiling.model.layers import Profile
from whet.profiling.model.leaks import Leak
from whet.profiling.model.operators import Operators
from whet.profiling.model.sections import SectionCost
from whet.ui.figures import digits, duration, num_bytes, percent

_BUSY = 0.6  # a thread that computes for a smaller share of the time is waiting
_LEAST_S = 1e-3  # the clocks of threads are too coarse for a shorter block
_ABOUT_ONE = 1.25  # so many busy cores, or fewer, count as one
_PYTHON = 0.4  # if a larger share of the traced time is outside of operators, Python holds the block back
_IDLE_GPU = 0.6  # if kernels run for a smaller share of the time, the host is too slow for the GPU
_WORTH = 1.05  # the least speedup that a technique must promise to be named
_MOST_NAMED = 5


@dataclass(frozen=True)
class Hint:
    """Name a technique that applies here, and the best speedup it could bring: 1.5 means at most 50% faster."""

    technique: str
    speedup_bound: float


@dataclass(frozen=True)
class ProfileVerdict:
    """Describe what holds a program back.

    Attributes:
        sentences: The evidence, then the advice.
        share_of_limit: Attainable time divided by measured time; None if it is not known.
        hints: The techniques that the sentences name.
    """

    bound: Bound
    sentences: tuple[str, ...]
    share_of_limit: float | None = None
    hints: tuple[Hint, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def model_verdict(
    profile: Profile, limits: Limits, *, hints: Sequence[Hint] = (), target: str = "", is_disturbed: bool = False
) -> ProfileVerdict:
    """Return the verdict on a model whose layers have been profiled.

    Args:
        target: The name for `whet tune`; "" suggests no command.
        is_disturbed: Whether other processes disturbed the pass over the layers. Its times say nothing about gains.
    """
    diagnosis = diagnose(profile, limits)
    least_s = least_time_s(profile, limits)
    sentences = [_capital(diagnosis.sentence)]
    if 0 < profile.total_s <= least_s:
        sentences.append(
            f"In the pass over the layers, a call takes {duration(profile.total_s)}, which is this machine's limit for "
            f"its work in {profile.dtype}: only less work, or a smaller dtype, makes it faster."
        )
    elif least_s and profile.total_s:
        sentences.append(
            f"At this machine's limits in {profile.dtype} the same work would take {duration(least_s)}: "
            f"in the pass over the layers, a call takes {duration(profile.total_s)}, "
            f"{digits(profile.total_s / least_s)} times as long."
        )
    useful = sorted((h for h in hints if h.speedup_bound >= _WORTH), key=lambda h: -h.speedup_bound)[:_MOST_NAMED]
    if useful:
        if is_disturbed:
            named = ", ".join(h.technique for h in useful)
            sentences.append(f"Techniques that address it here: {named} (gains not given: the machine was busy).")
            useful = []
        else:
            named = ", ".join(f"{h.technique} ({digits(h.speedup_bound)}×)" for h in useful)
            sentences.append(f"Techniques that address it here, and the most each could gain alone: {named}.")
        if target:
            sentences.append(f"`whet tune {target}` tries them.")
    elif hints and not is_disturbed:
        sentences.append("No technique that whet knows promises a gain here.")
    return ProfileVerdict(diagnosis.bound, tuple(sentences), diagnosis.share_of_limit, tuple(useful))


@dataclass(frozen=True)
class BlockFacts:
    """Hold what was measured of a block of code.

    Attributes:
        cpu_s: CPU time of all threads. Threads that spin while they wait count as well.
        thread_s: CPU time of the thread that ran the block.
        cores: The number of cores that the process may use.
        operators: The block's operators; None if they were not traced.
        dtype: The dtype of its matrix products.
        memory_watched: Whether Python code around each operator watched memory. If so, the time outside of operators
            means nothing.
    """

    wall_s: float
    cpu_s: float
    thread_s: float
    cores: int
    on_gpu: bool = False
    sections: tuple[SectionCost, ...] = ()
    operators: Operators | None = None
    leaks: tuple[Leak, ...] = ()
    dtype: str = "float32"
    memory_watched: bool = False


def block_verdict(facts: BlockFacts, limits: Limits | None = None) -> ProfileVerdict:
    """Return the verdict on a block of code, from the use of the cores, the traced operators and the memory."""
    if facts.wall_s < _LEAST_S:
        return ProfileVerdict(Bound.UNKNOWN, (f"{duration(facts.wall_s)} is too short to tell what bounds it.",))
    busy = facts.cpu_s / facts.wall_s
    bound, why = _block_bound(facts, busy)
    sentences = [why, *_main_section(facts, waits=bound is Bound.WAITING)]
    share = None
    operators = facts.operators
    if limits is not None and operators is not None and operators.flops and operators.traced_s:
        share = min(1.0, operators.flops / operators.traced_s / limits.peak(facts.dtype))
        sentences.append(
            f"Its matrix products and convolutions run at {percent(share)} of what this machine reaches in "
            f"{facts.dtype}."
        )
    if facts.leaks and bound is not Bound.MEMORY_GROWING:
        sentences.append(growth_sentence(facts.leaks))
    if bound in ADVICE:
        sentences.append(f"{_capital(ADVICE[bound])}.")
    return ProfileVerdict(bound, tuple(sentences), share)


def _block_bound(facts: BlockFacts, busy: float) -> tuple[Bound, str]:
    """Return what bounds a block, and the sentence that gives the evidence. `busy` is the number of busy cores."""
    operators = facts.operators
    if facts.leaks and max(leak.bytes_per_step for leak in facts.leaks) >= 1024:
        return Bound.MEMORY_GROWING, growth_sentence(facts.leaks)
    if operators is not None and operators.device_s is not None and operators.traced_s:
        share = operators.device_s / operators.traced_s
        if share < _IDLE_GPU:
            return (
                Bound.OVERHEAD,
                f"The GPU works {percent(share)} of the time. For the rest, it waits for the host.",
            )
        return Bound.COMPUTE, f"The GPU works {percent(min(1.0, share))} of the time."
    waited = 1 - facts.thread_s / facts.wall_s
    if 1 - waited < _BUSY:
        return Bound.WAITING, (
            f"The thread that runs it waited for {percent(waited)} of the time: for data, disk, network, locks, "
            "sleep, or its turn on a busy machine."
        )
    if facts.on_gpu:
        return Bound.UNKNOWN, "Whether the GPU was busy is not known: whet.profile(operators=True) measures it."
    if operators is not None and operators.traced_s and not facts.memory_watched:
        outside = 1 - operators.inside_s / operators.traced_s - waited
        if outside >= _PYTHON:
            return (
                Bound.OVERHEAD,
                f"{percent(outside)} of the time is spent in Python code, outside of any operator.",
            )
    of_cores = f"The process kept {busy:.2f} of its {facts.cores} cores busy."
    return Bound.ONE_CORE if busy <= _ABOUT_ONE and facts.cores > 1 else Bound.COMPUTE, of_cores


def _main_section(facts: BlockFacts, *, waits: bool) -> list[str]:
    """Say in at most one sentence which section takes most of the time or, if `waits`, most of the waiting."""
    if not facts.sections:
        return []
    main = max(facts.sections, key=lambda section: section.waited_s if waits else section.self_s)
    where = f"section '{' / '.join(main.path)}'"
    if waits:
        waited_s = max(1e-12, facts.wall_s - facts.thread_s)
        return [f"{percent(min(1.0, main.waited_s / waited_s))} of the waiting is in {where}."]
    idle = f"; {percent(main.waited_s / main.self_s)} of it is waiting" if main.waited_s > main.self_s / 2 else ""
    return [f"The largest part of the time, {percent(main.self_s / facts.wall_s)}, goes into {where} itself{idle}."]


def growth_sentence(leaks: Sequence[Leak], step: str = "step") -> str:
    """Say by how much memory grows, and at which line.

    There is at least one leak, the most important first. `step` is the word for a step, as "call".
    """
    per_step = sum(leak.bytes_per_step for leak in leaks)
    return f"Memory grows by {num_bytes(per_step)} a {step}; look first at {leaks[0].line}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
