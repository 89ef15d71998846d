"""The one rule, and what it comes to when there is too little of something."""

import pytest
from driving import make_request
from planning import ask, compute, make_scheduler, planned

from whet.server.blocks import Blocks
from whet.server.request import Status
from whet.server.sampling_params import SamplingParams
from whet.server.scheduler import Scheduler


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


def test_a_step_must_hold_a_token_for_each_sequence() -> None:
    assert make_scheduler(max_num_seqs=4, max_batch_tokens=4).max_batch_tokens == 4
    with pytest.raises(ValueError, match="each running request gets a token"):
        make_scheduler(max_num_seqs=4, max_batch_tokens=3)


def test_there_is_work_as_long_as_somebody_waits_or_runs() -> None:
    scheduler = make_scheduler()
    assert not scheduler.has_work
    request = ask(scheduler, 3)
    assert scheduler.has_work
    compute(scheduler.schedule())
    assert (scheduler.has_work, list(scheduler.waiting), scheduler.running) == (True, [], [request])
    scheduler.finish(request, "stop")
    assert not scheduler.has_work


def test_an_end_takes_everything_back_once() -> None:
    scheduler = make_scheduler()
    running, waiting = ask(scheduler, 3), ask(scheduler, 30)
    scheduler.max_num_seqs = 1
    compute(scheduler.schedule())
    running.drafts = [1]
    for request in (running, waiting):
        scheduler.finish(request, "abort")
        scheduler.finish(request, "stop")  # the first word counts
        assert (request.status, request.finish_reason, request.drafts) == (Status.FINISHED, "abort", [])
    assert scheduler.blocks.num_free == 100
    assert not scheduler.has_work
    scheduler.check()


def test_who_is_preempted_starts_again_without_its_drafts() -> None:
    scheduler = make_scheduler()
    a, b = ask(scheduler, 3), ask(scheduler, 5)
    compute(scheduler.schedule())
    b.drafts = [1, 2]
    scheduler.preempt(b)
    assert (b.status, b.drafts, b.blocks, b.num_computed) == (Status.WAITING, [], [], 0)
    assert (b.num_preemptions, scheduler.num_preemptions) == (1, 1)
    assert (scheduler.running, list(scheduler.waiting)) == ([a], [b])
    scheduler.check()
    compute(scheduler.schedule())
    scheduler.preempt(b)
    assert (b.num_preemptions, scheduler.num_preemptions) == (2, 2)


def test_a_plan_tells_the_tokens_of_prompts_from_those_of_outputs() -> None:
    scheduler = make_scheduler(max_batch_tokens=8)
    a, b = ask(scheduler, 2, 1), ask(scheduler, 30, 2)
    plan = scheduler.schedule()
    assert (planned(plan), plan.total_tokens, plan.prompt_tokens) == ([(a, 2), (b, 6)], 8, 8)
    compute(plan)
    a.drafts = [7, 7]
    plan = scheduler.schedule()
    assert (planned(plan), plan.total_tokens, plan.prompt_tokens) == ([(a, 3), (b, 5)], 8, 5)


def test_a_single_token_is_no_chunk() -> None:
    scheduler = make_scheduler(max_batch_tokens=5)
    a, b = ask(scheduler, 4, 1), ask(scheduler, 30, 2)
    plan = scheduler.schedule()
    assert (planned(plan), plan.prompt_tokens) == ([(a, 4), (b, 1)], 4)
    alone = make_scheduler()
    ask(alone, 1)
    assert alone.schedule().prompt_tokens == 0


def test_a_chunk_leaves_a_token_for_each_of_those_behind_it() -> None:
    scheduler = make_scheduler(max_num_seqs=3, max_batch_tokens=30)
    long, b, c = ask(scheduler, 20, 1), ask(scheduler, 1, 2), ask(scheduler, 1, 3)
    compute(scheduler.schedule())
    long.num_computed, scheduler.max_batch_tokens = 8, 5
    assert planned(scheduler.schedule()) == [(long, 3), (b, 1), (c, 1)]


def test_prompts_share_what_a_step_has_for_them() -> None:
    """Steps are so dear that 16 tokens of prompts are the most beside an output: the second prompt gets none."""
    scheduler = make_scheduler(num_blocks=500, max_batch_tokens=400, max_step_ms=1)
    a = ask(scheduler, 4)
    compute(scheduler.schedule())
    first, second = ask(scheduler, 100, 1), ask(scheduler, 100, 2)
    assert planned(scheduler.schedule()) == [(a, 1), (first, 100), (second, 100)]
    first.num_computed = second.num_computed = 10
    scheduler.cost.observe(201, 200, 1000.0)
    third = ask(scheduler, 1, 3)
    assert planned(scheduler.schedule()) == [(a, 1), (first, 16)]
    assert list(scheduler.waiting) == [third]
    first.num_computed = 97
    assert planned(scheduler.schedule()) == [(a, 1), (first, 3), (second, 13)]


def test_room_for_drafts_is_what_the_others_leave() -> None:
    scheduler = make_scheduler(max_num_seqs=2, max_batch_tokens=5)
    a, b = ask(scheduler, 1, 1), ask(scheduler, 1, 2)
    compute(scheduler.schedule())
    a.drafts, b.drafts = [7, 8, 9, 10, 11], [5]
    plan = scheduler.schedule()
    assert planned(plan) == [(a, 4), (b, 1)]
    assert (a.drafts, b.drafts) == ([7, 8, 9], [])


def test_nobody_is_admitted_beyond_the_steps_tokens() -> None:
    scheduler = make_scheduler(max_num_seqs=4, max_batch_tokens=4)
    a, b = ask(scheduler, 4, 1), ask(scheduler, 1, 2)
    assert planned(scheduler.schedule()) == [(a, 4)]
    assert list(scheduler.waiting) == [b]


def test_one_that_never_fits_fails_and_the_next_is_tried() -> None:
    scheduler = make_scheduler(num_blocks=2)
    too_long, fine = ask(scheduler, 9), ask(scheduler, 8)
    plan = scheduler.schedule()
    assert plan.failed == [too_long]
    assert too_long.error == (
        "no room for token 10: the cache holds 8 tokens, in blocks of 4. Ask for fewer tokens, or give the engine "
        "more memory"
    )
    assert (too_long.status, too_long.finish_reason) == (Status.FINISHED, "error")
    assert planned(plan) == [(fine, 8)]


def test_a_hundredth_of_the_blocks_stays_free_beside_who_runs() -> None:
    scheduler = make_scheduler(num_blocks=300, max_num_seqs=4, max_batch_tokens=1200)
    ask(scheduler, 4, 1)
    compute(scheduler.schedule())  # holds one of 300 blocks, and three stay free
    for num_blocks, is_admitted in ((297, False), (296, True)):
        request = make_request([2] * 4 * num_blocks, SamplingParams(temperature=0, max_tokens=1))
        assert scheduler.blocks.can_seat(request, [], scheduler._watermark) is is_admitted
    assert make_scheduler(num_blocks=4)._watermark == 1


def test_the_newest_make_room_until_there_is_enough() -> None:
    """The oldest needs two more blocks; the two newest hold one each, and nothing else is free."""
    scheduler = make_scheduler(num_blocks=4, max_num_seqs=3)
    old = ask(scheduler, 7, 1)
    scheduler.schedule()
    scheduler._watermark = 0
    b, c = ask(scheduler, 2, 2), ask(scheduler, 2, 3)
    compute(scheduler.schedule())
    old.num_computed, old.token_ids = 7, [1] * 16
    plan = scheduler.schedule()
    assert plan.preempted == [c, b]
    assert planned(plan) == [(old, 9)]
    assert list(scheduler.waiting) == [b, c]
    scheduler.check()


def test_the_newest_itself_goes_where_nobody_is_newer() -> None:
    scheduler = make_scheduler(num_blocks=3, max_num_seqs=2)
    scheduler._watermark = 0
    a, b = ask(scheduler, 7, 1), ask(scheduler, 3, 2)
    compute(scheduler.schedule())
    b.token_ids, b.num_computed = [2] * 5, 4
    plan = scheduler.schedule()
    assert plan.preempted == [b]
    assert planned(plan) == [(a, 1)]
    assert list(scheduler.waiting) == [b]
    scheduler.check()


def test_found_prefixes_are_not_counted_without_a_cache_for_them() -> None:
    blocks = Blocks(100, 4, 4, 200, prefix_caching=False)
    scheduler = Scheduler(blocks, max_num_seqs=4, max_batch_tokens=20)
    ask(scheduler, 9)
    scheduler.schedule()
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (0, 0)


def test_wrong_states_are_found() -> None:
    for spoil in ("running", "waiting", "blocks"):
        scheduler = make_scheduler(max_num_seqs=1)
        a, b = ask(scheduler, 3), ask(scheduler, 3)
        compute(scheduler.schedule())
        scheduler.check()
        if spoil == "running":
            a.status = Status.WAITING
        elif spoil == "waiting":
            b.status = Status.RUNNING
        else:
            b.blocks = [0]
        with pytest.raises(AssertionError):
            scheduler.check()
