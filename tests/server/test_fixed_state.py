"""State of fixed size, a row a sequence: the same tokens in a batch, in chunks, and after preemption."""

import random
from collections.abc import Callable

import pytest
from driving import Run, make_request, make_stepper, outputs
from naive import naive_output
from recurrent_model import BankCell, GatedCell, RecurrentModel, WithBlocks

from whet.errors import OptionError
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams

MODELS: dict[str, Callable[[], RecurrentModel]] = {
    "recurrence": lambda: RecurrentModel(GatedCell),
    "memory bank": lambda: RecurrentModel(BankCell),
    "with blocks": WithBlocks,
}
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=12)


def prompts() -> list[list[int]]:
    draw = random.Random(1)
    shared = [draw.randrange(40) for _ in range(9)]
    return [shared + [draw.randrange(40) for _ in range(length)] for length in (1, 4, 9, 17, 2, 1)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunking", [False, True])
def test_equal_to_one_at_a_time(name: str, chunking: bool) -> None:
    model = MODELS[name]()
    expected = [naive_output(model.logits_after, prompt, PARAMS) for prompt in prompts()]
    stepper = make_stepper(model, num_blocks=18, max_num_seqs=4, max_batch_tokens=7 if chunking else 100)
    done = outputs(stepper, [make_request(prompt, PARAMS) for prompt in prompts()])
    assert [one.token_ids for one in done] == expected
    assert (stepper.scheduler.num_preemptions > 0) is (name == "with blocks")
    assert all(one.num_cached_tokens == 0 for one in done)  # a found block would bring no other state


@pytest.mark.parametrize("name", MODELS)
def test_preempted_it_starts_from_its_first_token(name: str) -> None:
    model = MODELS[name]()
    run = Run(make_stepper(model, max_num_seqs=3, max_batch_tokens=16))
    requests = [make_request(prompt, PARAMS) for prompt in prompts()]
    run.add(*requests)
    draw, scheduler = random.Random(2), run.stepper.scheduler
    while scheduler.has_work:
        run.step()
        if scheduler.running and draw.random() < 0.5 and scheduler.num_preemptions < 8:
            scheduler.preempt(draw.choice(scheduler.running))
            run.check()
    done = run.until_done()
    assert scheduler.num_preemptions == 8
    for request in requests:
        assert done[request.id].token_ids == naive_output(model.logits_after, request.prompt_ids, PARAMS)


def test_an_engine_with_one() -> None:
    model = RecurrentModel(BankCell)
    with Engine(model, EngineOptions(max_num_seqs=3)) as engine:
        done = engine.generate(prompts(), PARAMS)
        stats = engine.stats()
    assert [one.token_ids for one in done] == [naive_output(model.logits_after, p, PARAMS) for p in prompts()]
    assert (stats.speculation, stats.prefix_cache_queries, stats.kv_cache_usage) == ("off", 0, 0)


def test_what_such_a_state_cannot_do_is_refused() -> None:
    with pytest.raises(OptionError, match="cannot go back over refused drafts"):
        Engine(RecurrentModel(GatedCell), EngineOptions(speculation="ngram"))
    with pytest.raises(OptionError, match="cannot go back over refused drafts"):
        Engine(RecurrentModel(GatedCell), draft=RecurrentModel(GatedCell))
    with pytest.raises(OptionError, match=r"the states of 64 sequences take 6.14 kB and .* 1.00 kB"):
        Engine(RecurrentModel(BankCell), EngineOptions(memory=1000))
