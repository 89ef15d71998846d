"""A stepper driven by hand, with its books checked after every step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from whet.models.step import Allocation, ServedModel
from whet.server.assembly import snapshots_of
from whet.server.blocks import Blocks
from whet.server.completion import Completion, Delta, join
from whet.server.drafters import ModelDrafter
from whet.server.randomness import make_seed
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.scheduler import Scheduler
from whet.server.speculative import Speculation
from whet.server.stepper import Progress, Stepper


class Clock:
    """Time that passes only when somebody looks: a millisecond each."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


def make_stepper(
    model: ServedModel,
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_batch_tokens: int = 64,
    max_step_ms: float = 1e9,
    prefix_caching: bool = True,
    speculation: Speculation | None = None,
    identity: str = "",
    max_model_len: int | None = None,
    num_snapshots: int = 0,
    num_drafts: int = 8,
) -> Stepper:
    room = room_of(model, num_blocks, max_num_seqs, num_snapshots, num_drafts)
    blocks = Blocks(
        room.num_blocks,
        model.block_size if model.bytes_per_block else 0,
        max_num_seqs,
        max_model_len or model.max_model_len,
        identity=identity,
        prefix_caching=prefix_caching and (room.num_snapshots > 0 or not model.bytes_per_state),
    )
    scheduler = Scheduler(
        blocks,
        max_num_seqs=max_num_seqs,
        max_batch_tokens=max_batch_tokens,
        max_step_ms=max_step_ms,
        snapshots=snapshots_of(model, room, identity, least=4, interval=16, rolling=8) if room.num_snapshots else None,
    )
    model.allocate(room)
    return Stepper(model, scheduler, speculation, Clock())


def room_of(
    model: ServedModel, num_blocks: int, num_states: int, num_snapshots: int = 0, num_drafts: int = 0
) -> Allocation:
    """What a model allocates of this: only what it has."""
    has_states = model.bytes_per_state > 0
    return Allocation(
        num_blocks=num_blocks if model.bytes_per_block else 0,
        num_states=num_states if has_states else 0,
        num_snapshots=num_snapshots if has_states else 0,
        num_drafts=num_drafts if model.can_rewind else 0,
    )


_numbers = iter(range(10**9))


def make_request(
    prompt: list[int], params: SamplingParams, *, eos_ids: Sequence[int] = (), salt: str = "", id: str | None = None
) -> Request:
    return Request(
        id=id or f"r{next(_numbers)}",
        prompt_ids=prompt,
        params=params,
        max_len=len(prompt) + (params.max_tokens if params.max_tokens is not None else 10**6),
        seed=make_seed(params.seed),
        stop_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos_ids)),
        cache_salt=salt,
    )


@dataclass
class Run:
    """What came of some requests. after_step: called with the number of the step just done."""

    stepper: Stepper
    deltas: dict[str, list[Delta]] = field(default_factory=dict)
    num_steps: int = 0
    after_step: Callable[[int], object] | None = None

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.deltas[request.id] = []
            self.stepper.scheduler.add(request)

    def take(self, progress: Sequence[Progress]) -> None:
        for request, delta in progress:
            self.deltas[request.id].append(delta)

    def step(self) -> None:
        self.take(self.stepper.step())
        self.num_steps += 1
        self.check()
        if self.after_step is not None:
            self.after_step(self.num_steps)

    def check(self) -> None:
        self.stepper.scheduler.check()
        speculation = self.stepper.speculation
        if speculation is not None and isinstance(speculation.drafter, ModelDrafter):
            speculation.drafter.check()

    def until_done(self, max_steps: int = 10_000) -> dict[str, Completion]:
        while self.stepper.scheduler.has_work:
            self.step()
            if self.num_steps > max_steps:
                raise AssertionError(f"{max_steps} steps and no end")
        return {request_id: join(deltas) for request_id, deltas in self.deltas.items()}


def outputs(stepper: Stepper, requests: Sequence[Request]) -> list[Completion]:
    """The completions of requests that are all there from the start."""
    run = Run(stepper)
    run.add(*requests)
    done = run.until_done()
    return [done[request.id] for request in requests]
