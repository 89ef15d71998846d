"""Decide what the next step computes, by one rule: tokens plus drafts of a request, minus the tokens computed so far.

This number covers all cases: decoding, chunks of a prompt, cached prefixes, requests that return after a preemption,
and the verification of drafts. Running requests come first. Each gets one token, or a part of its prompt if the limits
allow. Waiting requests follow in order, unless a request was preempted in this step because blocks ran out. The newest
request is preempted first. It is computed again later, except for blocks that are still in the cache.

Source: the scheduler of vLLM's version 1 has this rule.
"""

from collections import deque
from dataclasses import dataclass, field

from whet.server.blocks import Blocks
from whet.server.request import FinishReason, Request, Status
from whet.server.snapshots import Snapshots
from whet.server.step_cost import StepCost

_WATERMARK = 0.01  # the share of blocks that stays free when a request is admitted, so that running ones can grow


@dataclass(slots=True)
class Plan:
    """Describe one step.

    Attributes:
        num_tokens: How many tokens of each request are computed, drafts included.
        failed: Requests that cannot continue. Their `error` says why.
        prompt_tokens: How many of all tokens belong to chunks of prompts.
    """

    requests: list[Request] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)
    total_tokens: int = 0
    prompt_tokens: int = 0

    def add(self, request: Request, count: int) -> int:
        """Plan `count` tokens of a request, and return how many of them belong to a prompt's chunk."""
        self.requests.append(request)
        self.num_tokens.append(count)
        self.total_tokens += count
        chunk = 0 if count == 1 or _is_decoding(request) else count
        self.prompt_tokens += chunk
        return chunk


class Scheduler:
    """Plan one step after another. It uses no clock, threads or random numbers: equal calls give equal plans.

    The limits are those of EngineOptions. `snapshots` keeps states of fixed size for requests that share a beginning;
    None if the model has none, or they are not to be shared.
    """

    def __init__(
        self,
        blocks: Blocks,
        *,
        max_num_seqs: int,
        max_batch_tokens: int,
        max_step_ms: float = 100.0,
        snapshots: Snapshots | None = None,
    ) -> None:
        if max_batch_tokens < max_num_seqs:
            raise ValueError("each running request gets a token in every step")
        self.blocks, self.snapshots = blocks, snapshots
        self.cost = StepCost(max_step_ms)
        self.max_num_seqs, self.max_batch_tokens = max_num_seqs, max_batch_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the newest last
        self.num_preemptions = 0
        self.prefix_queries = 0  # tokens looked up
        self.prefix_hits = 0  # tokens found
        self._watermark = max(1, int(blocks.num_blocks * _WATERMARK)) if blocks.block_size else 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """Plan the next step. Compute or finish its requests before the next call."""
        plan = Plan()
        if self._go_on(plan):
            if self.waiting:
                self._admit(plan, self._chunk_limit())
            return plan
        chunk_limit = self._continue(plan, self._chunk_limit())
        if not plan.preempted:
            self._admit(plan, chunk_limit)
        return plan

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a running or waiting request, and release its blocks."""
        if request.is_finished:
            return
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.blocks.release(request)
        request.status, request.finish_reason = Status.FINISHED, reason
        request.drafts = []

    def preempt(self, request: Request) -> None:
        """Put a running request back to the front of the queue. It is computed again later."""
        self.running.remove(request)
        self.blocks.release(request)
        request.status = Status.WAITING
        request.drafts = []
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def reset(self) -> list[Request]:
        """Forget all requests, even after an error left inconsistent state, and return them."""
        requests = [*self.running, *self.waiting]
        self.running, self.waiting = [], deque()
        self.blocks.reset()
        if self.snapshots is not None:
            self.snapshots.reset()
        for request in requests:
            request.status, request.blocks = Status.FINISHED, []
        return requests

    def check(self) -> None:
        """Raise AssertionError unless requests, queues and blocks are consistent."""
        self.blocks.check(self.running)
        if self.snapshots is not None:
            self.snapshots.check()
        for requests, status in ((self.running, Status.RUNNING), (self.waiting, Status.WAITING)):
            if not all(request.status is status for request in requests):
                raise AssertionError(f"not all are {status.value}")
        if any(request.blocks for request in self.waiting):
            raise AssertionError("a waiting request holds blocks")

    def _chunk_limit(self) -> int:
        """Return the most prompt tokens for this step. There are fewer if running outputs would wait for them."""
        num_decoding = sum(_is_decoding(request) for request in self.running)
        limit = self.cost.max_prompt_tokens(num_decoding) if num_decoding else None
        return self.max_batch_tokens if limit is None else limit

    def _go_on(self, plan: Plan) -> bool:
        """Plan one token for each running request, as in most steps.

        Return False, with nothing planned, if a request needs more than one token or has no room.
        """
        running = self.running
        for request in running:
            start = request.num_computed
            if len(request.token_ids) - start != 1 or request.drafts:
                return False
            if start >= request.capacity and not self.blocks.grow(request, start + 1):
                return False
        plan.requests, plan.num_tokens, plan.total_tokens = running.copy(), [1] * len(running), len(running)
        return True

    def _continue(self, plan: Plan, chunk_limit: int) -> int:
        """Plan the running requests, and return what is left of the limit on prompt tokens."""
        running = self.running
        i = 0
        while i < len(running):
            request = running[i]
            count = len(request.token_ids) + len(request.drafts) - request.num_computed
            if count > 1:
                others = len(running) - i - 1  # each of these still needs room for its one token
                room = self.max_batch_tokens - plan.total_tokens - others
                is_chunk = not _is_decoding(request)
                count = self._chunk(request, min(room, chunk_limit)) if is_chunk else self._trim_drafts(request, room)
                if is_chunk and count <= 0:
                    i += 1
                    continue
            if request.num_computed + count > request.capacity:
                count = self._make_room(request, count, plan)
                if not count:
                    continue  # it was removed from `running`, and the next request has moved to place i
            chunk_limit -= plan.add(request, count)
            i += 1
        return chunk_limit

    def _admit(self, plan: Plan, chunk_limit: int) -> None:
        """Plan waiting requests, in order, while there is room."""
        while self.waiting and len(self.running) < self.max_num_seqs:
            room = min(self.max_batch_tokens - plan.total_tokens, chunk_limit)
            if room <= 0:
                return
            request = self.waiting[0]
            shared, num_found = self._match(request)
            if not self.blocks.can_seat(request, shared, self._watermark if self.running else 0):
                if self.running:
                    return
                self._fail(request, plan)
                continue
            self.waiting.popleft()
            self.running.append(request)
            request.status = Status.RUNNING
            self.blocks.seat(request, shared)
            if self.snapshots is not None:
                self.snapshots.begin(request, num_found)
            request.num_computed = max(request.num_computed, request.num_before)
            self._count_prefix(request)
            count = self._chunk(request, room)
            self.blocks.grow(request, request.num_computed + count)
            chunk_limit -= plan.add(request, count)

    def _match(self, request: Request) -> tuple[list[int], int]:
        """Return the blocks with which the request begins, and how many tokens need not be computed."""
        shared = self.blocks.match(request)
        size = self.blocks.block_size
        if self.snapshots is None:
            return shared, len(shared) * size
        found = self.snapshots.find(request, len(shared) * size if size else len(request.token_ids))
        return shared[: found // size] if size else [], found

    def _chunk(self, request: Request, room: int) -> int:
        """Return how many tokens of a prompt are computed, at most `room`. A chunk ends where a snapshot is due."""
        end = len(request.token_ids)
        if self.snapshots is not None:
            end = min(end, self.snapshots.next_place(request))
        return min(end - request.num_computed, room)

    def _make_room(self, request: Request, count: int, plan: Plan) -> int:
        """Get blocks for a running request. If they run out, drop its drafts, then preempt the newest requests.

        Return the number of tokens that have room; 0 if the request itself was preempted or failed.
        """
        while not self.blocks.grow(request, request.num_computed + count):
            if request.drafts:
                count = self._trim_drafts(request, 1)
                continue
            newest = self.running[-1]
            if newest is not request:
                self.preempt(newest)
                plan.preempted.append(newest)
            elif len(self.running) > 1:
                self.preempt(request)
                plan.preempted.append(request)
                return 0
            else:
                self._fail(request, plan)
                return 0
        return count

    def _trim_drafts(self, request: Request, room: int) -> int:
        """Drop the drafts of a decoding request that do not fit into `room` tokens, and return its token count."""
        if self.snapshots is not None:
            room = min(room, self.snapshots.draft_room(request))
        count = min(1 + len(request.drafts), max(room, 1))
        if len(request.drafts) >= count:
            del request.drafts[count - 1 :]
        return count

    def _fail(self, request: Request, plan: Plan) -> None:
        """End a request that runs alone and still does not have enough room."""
        num_tokens, size = len(request.token_ids), self.blocks.block_size
        request.error = (
            f"no room for token {num_tokens + 1}: the cache holds {self.blocks.num_blocks * size} tokens, in blocks of"
            f" {size}. Ask for fewer tokens, or give the engine more memory"
        )
        self.finish(request, "error")
        plan.failed.append(request)

    def _count_prefix(self, request: Request) -> None:
        if request.num_preemptions or not (self.blocks.prefix_caching or self.snapshots):
            return  # a preempted request finds its own blocks again, which is no cache hit
        self.prefix_queries += len(request.token_ids) - request.num_before
        self.prefix_hits += request.num_computed - request.num_before
        request.num_cached = request.num_computed


def _is_decoding(request: Request) -> bool:
    """Return whether all tokens of a request except the last are computed."""
    return request.num_computed == len(request.token_ids) - 1
