"""The scheduler under any load: books agree, budgets hold, and everybody comes to an end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from planning import ask, compute, make_scheduler, planned

from whet.server.prefixes import PrefixHashes
from whet.server.request import Request
from whet.server.snapshots import Snapshots


class AnyLoad(RuleBasedStateMachine):
    """Any order of arrivals, aborts, ends and drafts: books agree, budgets hold, everybody comes to an end."""

    @initialize(
        num_blocks=st.integers(3, 12),
        seqs=st.integers(1, 4),
        budget=st.integers(4, 12),
        num_snapshots=st.sampled_from([0, 0, 1, 5]),
        has_blocks=st.booleans(),
    )
    def start(self, num_blocks: int, seqs: int, budget: int, num_snapshots: int, has_blocks: bool) -> None:
        snapshots = None
        if num_snapshots:
            rows, hashes = range(seqs, seqs + num_snapshots), PrefixHashes("", 4)
            snapshots = Snapshots(rows, hashes, self.copy, least=4, interval=8, rolling=8)
            num_blocks *= has_blocks
        self.scheduler = make_scheduler(num_blocks, seqs, budget, max_step_ms=8, snapshots=snapshots)
        self.held: dict[int, list[int]] = {}  # of each row, the tokens that its state has read
        self.alive: list[Request] = []

    def copy(self, source: int, target: int) -> None:
        self.held[target] = self.held[source]

    @rule(num_prompt=st.integers(1, 30), first=st.integers(0, 1))
    def arrive(self, num_prompt: int, first: int) -> None:
        self.alive.append(ask(self.scheduler, num_prompt, first))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.alive:
            request = data.draw(st.sampled_from(self.alive))
            self.scheduler.finish(request, "abort")
            self.alive.remove(request)

    @rule(data=st.data(), ms_per_token=st.sampled_from([0.1, 1.0, 5.0]))
    def step(self, data: st.DataObject, ms_per_token: float) -> None:
        scheduler = self.scheduler
        for request in scheduler.running:
            if request.num_computed == len(request.token_ids) - 1:
                request.drafts = [1] * data.draw(st.integers(0, 3))
        plan = scheduler.schedule()
        scheduler.check()
        self.alive = [request for request in self.alive if not request.is_finished]
        assert plan.requests or plan.failed or plan.preempted or not self.alive
        assert plan.total_tokens == sum(plan.num_tokens) <= scheduler.max_batch_tokens
        assert len(plan.requests) <= scheduler.max_num_seqs
        assert all(count > 0 for count in plan.num_tokens)
        assert not set(map(id, plan.requests)) & set(map(id, plan.preempted + plan.failed))
        for request, count in planned(plan):
            assert request.num_computed + count <= min(request.capacity, len(request.token_ids) + len(request.drafts))
            if (
                scheduler.snapshots is not None
            ):  # its state has read what counts as computed, and settles some of the rest
                settled = min(request.num_computed + count, len(request.token_ids))
                assert request.num_computed == 0 or self.held[request.row] == request.token_ids[: request.num_computed]
                self.held[request.row] = request.token_ids[:settled]
                scheduler.snapshots.take(request, settled)
        waiting = [request for request in scheduler.running if request not in plan.requests]
        assert all(request.num_computed < len(request.token_ids) - 1 for request in waiting)  # outputs never wait
        compute(plan, data.draw(st.integers(0, 1)))
        scheduler.cost.observe(plan.total_tokens, plan.prompt_tokens, plan.total_tokens * ms_per_token)
        for request in plan.requests:
            scheduler.blocks.publish(request)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self) -> None:
        """Whatever is left can be served to its end, one way or the other."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not self.scheduler.has_work:
                break
            compute(self.scheduler.schedule())
            for request in list(self.scheduler.running):
                if len(request.token_ids) > request.num_prompt + 5:
                    self.scheduler.finish(request, "length")
        assert not self.scheduler.has_work
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.num_blocks


TestAnyLoad = AnyLoad.TestCase
TestAnyLoad.settings = settings(max_examples=40, stateful_step_count=40)
