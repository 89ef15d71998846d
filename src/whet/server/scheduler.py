"""What the next step computes, by one rule: a request needs its tokens and drafts, less what is computed.

Decoding, chunks of a prompt, found prefixes, a preempted request that comes back, verifying drafts: all are this
number. Running requests come first, each with at least one token; then waiting ones, in order, unless somebody was
preempted for want of blocks just now. The newest is preempted, and computed anew later, but for what is still found.
Source: the scheduler of vLLM's version 1 has this rule.
"""

from collections import deque
from dataclasses import dataclass, field

from whet.server.blocks import Blocks
from whet.server.request import FinishReason, Request, Status
from whet.server.step_cost import StepCost

_WATERMARK = 0.01  # of the blocks stay free when somebody is admitted, so that the running ones can grow


@dataclass(slots=True)
class Plan:
    """One step: `num_tokens[i]` of `requests[i]`, drafts among them. failed: cannot go on; their `error` says why."""

    requests: list[Request] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)
    total_tokens: int = 0
    prompt_tokens: int = 0  # of those, in chunks


class Scheduler:
    """Decides step by step. Without clock, threads or chance: the same calls give the same plans.

    max_num_seqs: requests in a step. max_batch_tokens: tokens in a step, at least max_num_seqs.
    """

    def __init__(
        self,
        blocks: Blocks,
        *,
        max_num_seqs: int,
        max_batch_tokens: int,
        max_step_ms: float = 100.0,
    ) -> None:
        if max_batch_tokens < max_num_seqs:
            raise ValueError("each running request gets a token in every step")
        self.blocks = blocks
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
        """Queue a request."""
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """Plan the next step. Requests in it must be computed, or finished, before the next call."""
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
        """End a request, wherever it is, and take back what it holds."""
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
        """Put a running request back to the front of the queue, to be computed anew."""
        self.running.remove(request)
        self.blocks.release(request)
        request.status = Status.WAITING
        request.drafts = []
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def reset(self) -> list[Request]:
        """Let go of all requests, whatever state the books are in. Returns them."""
        requests = [*self.running, *self.waiting]
        self.running, self.waiting = [], deque()
        self.blocks.reset()
        for request in requests:
            request.status, request.blocks = Status.FINISHED, []
        return requests

    def check(self) -> None:
        """Raises AssertionError where the books do not agree."""
        self.blocks.check(self.running)
        for requests, status in ((self.running, Status.RUNNING), (self.waiting, Status.WAITING)):
            if not all(request.status is status for request in requests):
                raise AssertionError(f"not all are {status.value}")
        if any(request.blocks for request in self.waiting):
            raise AssertionError("a waiting request holds blocks")

    def _chunk_limit(self) -> int:
        """Tokens of prompts in this step: fewer where running outputs would wait for them."""
        num_decoding = sum(_is_decoding(request) for request in self.running)
        limit = self.cost.max_prompt_tokens(num_decoding) if num_decoding else None
        return self.max_batch_tokens if limit is None else limit

    def _go_on(self, plan: Plan) -> bool:
        """Plan one token for each running request, where no one needs more and all have room, as in most steps."""
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
        """Plan the running requests. Returns what is left of the limit on prompt tokens."""
        running = self.running
        i = 0
        while i < len(running):
            request = running[i]
            count = len(request.token_ids) + len(request.drafts) - request.num_computed
            if count > 1:
                others = len(running) - i - 1  # each still gets its one token
                room = self.max_batch_tokens - plan.total_tokens - others
                is_chunk = not _is_decoding(request)
                count = min(count, room, chunk_limit) if is_chunk else self._trim_drafts(request, room)
                if is_chunk and count <= 0:
                    i += 1
                    continue
            if request.num_computed + count > request.capacity:
                count = self._make_room(request, count, plan)
                if not count:
                    continue  # it is gone from running, and the next one, if any, is at its place
            chunk_limit -= _plan(plan, request, count)
            i += 1
        return chunk_limit

    def _admit(self, plan: Plan, chunk_limit: int) -> None:
        """Plan waiting requests, in order, while there is room."""
        while self.waiting and len(self.running) < self.max_num_seqs:
            room = min(self.max_batch_tokens - plan.total_tokens, chunk_limit)
            if room <= 0:
                return
            request = self.waiting[0]
            shared = self.blocks.match(request)
            if not self.blocks.can_seat(request, shared, self._watermark if self.running else 0):
                if self.running:
                    return
                self._fail(request, plan)
                continue
            self.waiting.popleft()
            self.running.append(request)
            request.status = Status.RUNNING
            self.blocks.seat(request, shared)
            self._count_prefix(request)
            count = min(len(request.token_ids) - request.num_computed, room)
            self.blocks.grow(request, request.num_computed + count)
            chunk_limit -= _plan(plan, request, count)

    def _make_room(self, request: Request, count: int, plan: Plan) -> int:
        """Get blocks for a running request: without its drafts if need be, then from the newest others.

        Returns the tokens there is room for; 0: the request itself had to go.
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
        """Keep the drafts of a decoding request for which there is room beside its one token."""
        count = min(1 + len(request.drafts), max(room, 1))
        if len(request.drafts) >= count:
            del request.drafts[count - 1 :]
        return count

    def _fail(self, request: Request, plan: Plan) -> None:
        """It is alone and has not room enough."""
        num_tokens, size = len(request.token_ids), self.blocks.block_size
        request.error = (
            f"no room for token {num_tokens + 1}: the cache holds {self.blocks.num_blocks * size} tokens, in blocks of"
            f" {size}. Ask for fewer tokens, or give the engine more memory"
        )
        self.finish(request, "error")
        plan.failed.append(request)

    def _count_prefix(self, request: Request) -> None:
        if not self.blocks.prefix_caching or request.num_preemptions:
            return  # what a preempted request finds again is its own
        self.prefix_queries += len(request.token_ids)
        self.prefix_hits += request.num_computed
        request.num_cached = request.num_computed


def _is_decoding(request: Request) -> bool:
    """Whether all tokens but the last are computed."""
    return request.num_computed == len(request.token_ids) - 1


def _plan(plan: Plan, request: Request, count: int) -> int:
    """Enter it. Returns how many tokens of a prompt it is."""
    plan.requests.append(request)
    plan.num_tokens.append(count)
    plan.total_tokens += count
    chunk = 0 if count == 1 or _is_decoding(request) else count
    plan.prompt_tokens += chunk
    return chunk
