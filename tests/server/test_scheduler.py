"""The one rule, and what it comes to when there is too little of something."""

from driving import make_request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from whet.server.blocks import Blocks
from whet.server.request import Request, Status
from whet.server.sampling_params import SamplingParams
from whet.server.scheduler import Plan, Scheduler


def make_scheduler(
    num_blocks: int = 100, max_num_seqs: int = 4, max_batch_tokens: int = 20, **options: float
) -> Scheduler:
    blocks = Blocks(num_blocks, 4, max_num_seqs, 200)
    return Scheduler(blocks, max_num_seqs=max_num_seqs, max_batch_tokens=max_batch_tokens, **options)


def ask(scheduler: Scheduler, num_prompt: int, first: int = 0) -> Request:
    request = make_request([first] * num_prompt, SamplingParams(temperature=0, max_tokens=100))
    scheduler.add(request)
    return request


def compute(plan: Plan, token_id: int = 1) -> None:
    """What a step would do: all planned tokens computed, one new token where the last was among them."""
    for request, count in zip(plan.requests, plan.num_tokens, strict=True):
        request.num_computed += count - len(request.drafts)
        request.drafts = []
        if request.num_computed == len(request.token_ids):
            request.token_ids.append(token_id)


def planned(plan: Plan) -> list[tuple[Request, int]]:
    return list(zip(plan.requests, plan.num_tokens, strict=True))


def test_running_first_then_waiting_in_order_within_the_budget() -> None:
    scheduler = make_scheduler()
    a, b, c = ask(scheduler, 3, 1), ask(scheduler, 30, 2), ask(scheduler, 2, 3)
    plan = scheduler.schedule()
    assert planned(plan) == [(a, 3), (b, 17)]
    compute(plan)
    plan = scheduler.schedule()
    assert planned(plan) == [(a, 1), (b, 13), (c, 2)]
    compute(plan)
    assert planned(scheduler.schedule()) == [(a, 1), (b, 1), (c, 1)]
    scheduler.check()


def test_no_more_sequences_than_allowed() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    a, b, c = (ask(scheduler, 1) for _ in range(3))
    compute(scheduler.schedule())
    assert scheduler.running == [a, b]
    scheduler.finish(a, "stop")
    assert planned(scheduler.schedule()) == [(b, 1), (c, 1)]


def test_each_running_request_gets_a_token_before_drafts_and_chunks() -> None:
    scheduler = make_scheduler(max_num_seqs=4, max_batch_tokens=6)
    requests = [ask(scheduler, 1, i) for i in range(4)]
    compute(scheduler.schedule())
    for request in requests:
        request.drafts = [7, 8, 9]
    plan = scheduler.schedule()
    assert plan.num_tokens == [3, 1, 1, 1]
    assert [request.drafts for request in requests] == [[7, 8], [], [], []]


def test_the_newest_is_preempted_and_comes_back_first() -> None:
    scheduler = make_scheduler(num_blocks=5, max_num_seqs=3)
    a, b = ask(scheduler, 8, 1), ask(scheduler, 7, 2)
    compute(scheduler.schedule())  # 2 blocks each, one stays free
    assert scheduler.running == [a, b]
    c = ask(scheduler, 1, 3)
    preempted = []
    while not preempted:
        plan = scheduler.schedule()
        preempted = plan.preempted
        compute(plan)
        for request in scheduler.running:
            scheduler.blocks.publish(request)
        scheduler.check()
    assert preempted == [b]
    assert list(scheduler.waiting) == [b, c]  # nobody was admitted in its place
    assert (b.status, b.num_computed, b.num_preemptions) == (Status.WAITING, 0, 1)
    assert len(b.token_ids) > 7  # what it has is not lost
    scheduler.finish(a, "stop")
    plan = scheduler.schedule()
    assert plan.requests[0] is b
    assert plan.num_tokens[0] < len(b.token_ids)  # some of its own blocks were still there


def test_drafts_go_before_anybody_is_preempted() -> None:
    scheduler = make_scheduler(num_blocks=4, max_num_seqs=2)
    a, b = ask(scheduler, 6, 1), ask(scheduler, 3, 2)
    compute(scheduler.schedule())
    a.drafts = [1] * 9
    plan = scheduler.schedule()
    assert not plan.preempted
    assert planned(plan) == [(a, 1), (b, 1)]
    assert a.drafts == []


def test_a_watermark_stays_free_for_those_that_run() -> None:
    scheduler = make_scheduler(num_blocks=4)
    ask(scheduler, 7, 1)
    compute(scheduler.schedule())
    second = ask(scheduler, 8, 2)  # its two blocks are free, but then none would be
    compute(scheduler.schedule())
    assert list(scheduler.waiting) == [second]
    alone = make_scheduler(num_blocks=4)
    assert planned(alone.schedule()) == []
    whole = ask(alone, 16)
    assert planned(alone.schedule()) == [(whole, 16)]


def test_alone_and_without_room_it_fails() -> None:
    scheduler = make_scheduler(num_blocks=2)
    a = ask(scheduler, 8)
    compute(scheduler.schedule())
    plan = scheduler.schedule()
    assert (plan.failed, plan.requests) == ([a], [])
    assert (a.finish_reason, scheduler.blocks.num_free) == ("error", 2)
    too_long, fine = ask(scheduler, 9), ask(scheduler, 2)
    plan = scheduler.schedule()
    assert plan.failed == [too_long]
    assert planned(plan) == [(fine, 2)]
    assert "8 tokens" in (too_long.error or "")


def test_chunks_beside_outputs_follow_the_steps_time() -> None:
    scheduler = make_scheduler(num_blocks=500, max_batch_tokens=400, max_step_ms=60)
    a = ask(scheduler, 4)
    compute(scheduler.schedule())
    ask(scheduler, 190, 1)
    assert scheduler.schedule().num_tokens == [1, 190]  # nothing measured yet
    scheduler.cost.observe(191, 190, 191.0)
    scheduler.finish(scheduler.running[1], "abort")
    b = ask(scheduler, 150, 2)
    assert planned(scheduler.schedule()) == [(a, 1), (b, 59)]
    scheduler.cost.observe(2, 1, 50.0)  # no prompt to speak of: says nothing
    b.num_computed = 59
    plan = scheduler.schedule()
    assert planned(plan) == [(a, 1), (b, 59)]
    scheduler.cost.observe(60, 59, 600.0)  # ten times as dear
    b.num_computed = 118
    assert plan.prompt_tokens == 59
    assert planned(scheduler.schedule()) == [(a, 1), (b, 16)]  # never less than that
    scheduler.finish(a, "stop")
    assert planned(scheduler.schedule()) == [(b, 32)]  # nobody waits for it


def test_prefix_hits_are_counted_once() -> None:
    scheduler = make_scheduler()
    a = ask(scheduler, 9, 5)
    compute(scheduler.schedule())
    scheduler.blocks.publish(a)
    b = ask(scheduler, 9, 5)
    assert scheduler.schedule().num_tokens == [1, 1]
    assert (b.num_cached, scheduler.prefix_queries, scheduler.prefix_hits) == (8, 18, 8)
    scheduler.preempt(b)
    scheduler.schedule()
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (18, 8)


def test_starting_afresh() -> None:
    scheduler = make_scheduler()
    a, b = ask(scheduler, 30), ask(scheduler, 3)
    scheduler.schedule()
    assert scheduler.reset() == [a, b]
    assert not scheduler.has_work
    assert scheduler.blocks.num_free == 100
    scheduler.check()


class AnyLoad(RuleBasedStateMachine):
    """Any order of arrivals, aborts, ends and drafts: books agree, budgets hold, everybody comes to an end."""

    @initialize(num_blocks=st.integers(3, 12), seqs=st.integers(1, 4), budget=st.integers(4, 12))
    def start(self, num_blocks: int, seqs: int, budget: int) -> None:
        self.scheduler = make_scheduler(num_blocks, seqs, budget, max_step_ms=8)
        self.alive: list[Request] = []

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
