"""The verdict in words: what bounds this, how far it is from the machine's limit, and what addresses it."""

from collections.abc import Sequence
from dataclasses import dataclass

from whet.bounds import ADVICE, Bound
from whet.figures import digits, duration, num_bytes, percent
from whet.machine import Limits
from whet.profiler.diagnosis import diagnose, least_time_s
from whet.profiler.layers import Profile
from whet.profiler.leaks import Leak
from whet.profiler.operators import Operators
from whet.profiler.sections import SectionCost

_BUSY = 0.6  # of the time the thread computes: less, and it waits
_LEAST_S = 1e-3  # clocks of threads cannot tell what a shorter block does
_ABOUT_ONE = 1.25  # cores
_PYTHON = 0.4  # of the traced time outside of operators
_IDLE_GPU = 0.6  # of the time its kernels run: less, and the host is too slow to feed it
_WORTH = 1.05  # the least speedup that a technique must promise to be named
_MOST_NAMED = 5


@dataclass(frozen=True)
class Hint:
    """A technique that applies here, and the most it could bring: 1.5 is half as fast again, at the very best."""

    technique: str
    speedup_bound: float


@dataclass(frozen=True)
class ProfileVerdict:
    """What holds a program back. share_of_limit: attainable / measured, None where it is not known. sentences: the
    evidence, then what to do about it."""

    bound: Bound
    sentences: tuple[str, ...]
    share_of_limit: float | None = None
    hints: tuple[Hint, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def model_verdict(profile: Profile, limits: Limits, *, hints: Sequence[Hint] = (), target: str = "") -> ProfileVerdict:
    """For a model whose layers have been profiled. hints: the techniques that apply to it here."""
    diagnosis = diagnose(profile, limits)
    least_s = least_time_s(profile, limits)
    sentences = [_capital(diagnosis.sentence)]
    if 0 < profile.total_s <= least_s:
        sentences.append(
            f"With its layers timed, a call takes {duration(profile.total_s)}, which is this machine's limit for its "
            f"work in {profile.dtype}: only less work, or a smaller dtype, makes it faster."
        )
    elif least_s and profile.total_s:
        sentences.append(
            f"At this machine's limits in {profile.dtype} the same work would take {duration(least_s)}: "
            f"with its layers timed, a call takes {duration(profile.total_s)}, "
            f"{digits(profile.total_s / least_s)} times as long."
        )
    useful = sorted((h for h in hints if h.speedup_bound >= _WORTH), key=lambda h: -h.speedup_bound)[:_MOST_NAMED]
    if useful:
        named = ", ".join(f"{h.technique} ({digits(h.speedup_bound)}×)" for h in useful)
        sentences.append(f"Techniques that address it here, and the most each could gain alone: {named}.")
        if target:
            sentences.append(f"`whet tune {target}` tries them.")
    elif hints:
        sentences.append("No technique that whet knows promises a gain here.")
    return ProfileVerdict(diagnosis.bound, tuple(sentences), diagnosis.share_of_limit, tuple(useful))


@dataclass(frozen=True)
class BlockFacts:
    """What is known of a block of code.

    cpu_s: of all threads, those that spin while they wait included; thread_s: of the thread that ran the block. cores:
    that the process may use. dtype: of its products. memory_watched: by Python code around each operator, so that
    time outside of operators says nothing.
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
    """For any block of code: from what the cores did, what the tracer saw, and what memory did."""
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
    operators = facts.operators
    if facts.leaks and max(leak.bytes_per_step for leak in facts.leaks) >= 1024:
        return Bound.MEMORY_GROWING, growth_sentence(facts.leaks)
    if operators is not None and operators.device_s is not None and operators.traced_s:
        share = operators.device_s / operators.traced_s
        if share < _IDLE_GPU:
            return (
                Bound.OVERHEAD,
                f"The GPU works {percent(share)} of the time, and waits for the host for the rest.",
            )
        return Bound.COMPUTE, f"The GPU works {percent(min(1.0, share))} of the time."
    waited = 1 - facts.thread_s / facts.wall_s
    if 1 - waited < _BUSY:
        return Bound.WAITING, (
            f"The thread that runs it waited for {percent(waited)} of the time: for data, disk, network, locks, "
            "sleep, or its turn on a busy machine."
        )
    if facts.on_gpu:
        return Bound.UNKNOWN, "How busy the GPU was is not known: whet.profile(operators=True) tells."
    if operators is not None and operators.traced_s and not facts.memory_watched:
        outside = 1 - operators.inside_s / operators.traced_s - waited
        if outside >= _PYTHON:
            return (
                Bound.OVERHEAD,
                f"{percent(outside)} of the time is spent computing in no operator: it is Python's.",
            )
    of_cores = f"The process kept {busy:.2f} of the {facts.cores} cores busy that it may use."
    return Bound.ONE_CORE if busy <= _ABOUT_ONE and facts.cores > 1 else Bound.COMPUTE, of_cores


def _main_section(facts: BlockFacts, *, waits: bool) -> list[str]:
    """Where most of the time goes, or most of the waiting."""
    if not facts.sections:
        return []
    main = max(facts.sections, key=lambda section: section.waited_s if waits else section.self_s)
    where = f"section '{' / '.join(main.path)}'"
    if waits:
        waited_s = max(1e-12, facts.wall_s - facts.thread_s)
        return [f"{percent(min(1.0, main.waited_s / waited_s))} of the waiting is in {where}."]
    idle = f", which waits for {percent(main.waited_s / main.self_s)} of it" if main.waited_s > main.self_s / 2 else ""
    return [f"Most time, {percent(main.self_s / facts.wall_s)}, goes into {where} itself{idle}."]


def growth_sentence(leaks: Sequence[Leak], step: str = "step") -> str:
    """At least one leak, the most telling first. step: what to call one, as "call"."""
    per_step = sum(leak.bytes_per_step for leak in leaks)
    return f"Memory grows by {num_bytes(per_step)} a {step}, first of all at {leaks[0].line}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
