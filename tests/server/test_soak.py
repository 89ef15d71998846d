"""A thousand requests of all sizes, impossible ones among them, many aborted half-way: each answered or ended."""

import asyncio
import random
import threading
import time
from collections import Counter

from hash_model import HashModel
from letters import Letters

from whet.errors import QueueFull, RequestError
from whet.server.completion import join
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams

NUM_REQUESTS = 1000


def any_params(draw: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=draw.choice([0.0, 0.7]),
        seed=draw.randrange(100),
        top_p=draw.choice([1.0, 0.8]),
        max_tokens=draw.choice([0, 1, 5, 12, 20, 20, 30, 70]),
        stop=draw.choice([(), ("ab",), ("e",)]),
        repetition_penalty=draw.choice([1.0, 1.0, 1.3]),
        prompt_logprobs=draw.choice([None, None, 1]),
    )


async def one(engine: Engine, draw: random.Random) -> str:
    """One client: how its request ended."""
    prompt = [draw.randrange(40) for _ in range(draw.choice([0, 1, 3, 5, 10, 15, 30, 40, 64, 90]))]
    try:
        stream = engine.stream_async(prompt, any_params(draw), cache_salt=draw.choice(["", "x"]))
    except QueueFull:
        return "full"
    except RequestError:
        return "refused"
    patience = draw.choice([None, None, 0, 1, 4])
    deltas = []
    async for delta in stream:
        deltas.append(delta)
        if patience is not None and len(deltas) > patience:
            await stream.aclose()
            return "left"
    return join(deltas).finish_reason


async def some_steps(engine: Engine, num_steps: int) -> None:
    """Let a busy engine go on. In steps, not seconds: how full it gets must not depend on who else uses the machine."""
    goal = engine.stats().num_steps + num_steps
    await asyncio.sleep(0)
    while (stats := engine.stats()).num_steps < goal and stats.num_running + stats.num_waiting > 0:
        await asyncio.sleep(0.001)


async def everybody(engine: Engine) -> Counter[str]:
    draw = random.Random(4)
    tasks = []
    for _ in range(NUM_REQUESTS):
        tasks.append(asyncio.create_task(one(engine, draw)))
        if draw.random() < 0.05:
            await some_steps(engine, draw.choice([0, 4, 16]))
    return Counter(await asyncio.gather(*tasks))


def test_a_thousand_requests() -> None:
    before = set(threading.enumerate())
    with Engine(
        HashModel(),
        EngineOptions(
            max_num_seqs=8,
            max_batch_tokens=24,
            max_waiting=20,
            memory=32 * 28,  # 28 blocks, of which one sequence may need 16
        ),
        tokenizer=Letters(),
    ) as engine:
        ends = asyncio.run(everybody(engine))
        assert sum(ends.values()) == NUM_REQUESTS
        assert min(ends[end] for end in ("full", "refused", "left", "stop", "length")) > 0, ends
        assert ends["error"] == 0
        end = time.monotonic() + 10
        while engine._loop._entries and time.monotonic() < end:
            time.sleep(0.005)
        stats, scheduler = engine.stats(), engine._loop.stepper.scheduler
        assert stats.num_preemptions > 0
        assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)
        answered = sum(stats.request_success.values())
        assert answered == NUM_REQUESTS - ends["full"] - ends["refused"]
        assert not engine._loop._entries
        assert not engine._loop._unfinished
        assert not scheduler.waiting
        scheduler.check()
    assert set(threading.enumerate()) <= before
