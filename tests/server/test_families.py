"""Every family: the same tokens whatever happens on the way, found beginnings, drafts, and any load."""

import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from driving import Run, make_request, make_stepper, outputs, room_of
from families_served import FAMILIES, LONGEST, VOCAB, logits_after
from naive import naive_output
from torch import Tensor

from whet.server.drafters import Drafter, ModelDrafter
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.speculation_controller import SpeculationController
from whet.server.speculative import Speculation
from whet.server.stepper import Stepper

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=10)
NUM_DRAFTS = 4
HAS_STATES = [name for name, make in FAMILIES.items() if make().bytes_per_state]


@cache
def alone(name: str) -> Callable[[Sequence[int]], Tensor]:
    return logits_after(FAMILIES[name])


@cache
def expected(name: str, prompt: tuple[int, ...], num_tokens: int = 10) -> list[int]:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=num_tokens)
    with torch.inference_mode():
        return naive_output(alone(name), list(prompt), params)


def ids(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(count)]


def prompts() -> list[list[int]]:
    """Some share a beginning; some are as long as the window of a convolution, as the drafts, and one more."""
    return [
        *(ids(count, count) for count in (1, 3, 4, 5, 16, 17)),
        *(ids(33, 1) + ids(count, count) for count in (2, 9)),
    ]


class Guesser:
    """Proposes what will come, with mistakes: accepted are none, some or all, and in some steps there are no drafts."""

    def __init__(self, name: str) -> None:
        self._name, self._draw = name, random.Random(4)

    def propose(self, requests: Sequence[Request], num_drafts: Sequence[int]) -> bool:
        for request, count in zip(requests, num_drafts, strict=True):
            output = expected(self._name, tuple(request.prompt_ids))[request.num_output :]
            guesses = [*output, *[0] * count][: self._draw.randint(0, count)]
            request.drafts = [(guess + (self._draw.random() < 0.3)) % VOCAB for guess in guesses]
        return True


def drafter_of(kind: str, name: str) -> Drafter | None:
    if kind == "off":
        return None
    if kind == "guesses":
        return Guesser(name)
    model = FAMILIES[name]()
    room = room_of(model, num_blocks=60, num_states=8, num_drafts=NUM_DRAFTS)
    return ModelDrafter(model, room, num_rows=8, max_len=LONGEST, max_batch_tokens=64)


def stepper_of(
    name: str, drafter: Drafter | None, *, chunking: bool, few_blocks: bool = False, num_snapshots: int = 7
) -> Stepper:
    model = FAMILIES[name]()
    return make_stepper(
        model,
        max_model_len=LONGEST,
        num_blocks=-(-LONGEST // model.block_size) + 2 if few_blocks else 120,
        max_num_seqs=5,
        max_batch_tokens=9 if chunking else 100,
        num_snapshots=num_snapshots,
        num_drafts=NUM_DRAFTS,
        speculation=None if drafter is None else Speculation(drafter, NUM_DRAFTS),
    )


@pytest.mark.parametrize("kind", ["off", "guesses", "itself"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokens_of_each_alone(name: str, kind: str) -> None:
    """With chunks, preemption, found beginnings and drafts."""
    for chunking, preemption in ((False, False), (True, True)):
        stepper = stepper_of(name, drafter_of(kind, name), chunking=chunking, few_blocks=preemption)
        scheduler, draw = stepper.scheduler, random.Random(6)
        run = Run(stepper)
        requests = [make_request(prompt, PARAMS) for prompt in [*prompts(), *prompts()[4:]]]
        run.add(*requests)
        while scheduler.has_work:
            run.step()
            if preemption and scheduler.running and scheduler.num_preemptions < 9 and draw.random() < 0.3:
                scheduler.preempt(draw.choice(scheduler.running))
                run.check()
        done = run.until_done()
        for request in requests:
            assert done[request.id].token_ids == expected(name, tuple(request.prompt_ids)), (chunking, preemption)
        assert (scheduler.num_preemptions > 0) is preemption
        model = FAMILIES[name]()
        has_both = model.bytes_per_block > 0 and model.bytes_per_state > 0  # a hit takes blocks and a snapshot of them
        assert scheduler.prefix_hits > 0 or (preemption and has_both)
        speculation = stepper.speculation
        if speculation is not None:
            assert speculation.num_accepted > 10
            if kind == "itself" and "torch" not in name:  # it is always right, so its state always is
                assert speculation.num_accepted == speculation.num_drafted
            else:
                assert kind == "itself" or speculation.num_accepted < speculation.num_drafted


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_found_of_a_prompt(name: str) -> None:
    run = Run(stepper_of(name, None, chunking=False, num_snapshots=16))
    size = run.stepper.model.block_size
    common = ids(34, 1)

    def found(prompt: list[int], salt: str = "") -> int:
        request = make_request(prompt, PARAMS, salt=salt)
        run.add(request)
        done = run.until_done()[request.id]
        assert done.token_ids == expected(name, tuple(prompt))
        return done.num_cached_tokens

    first = [*common, *ids(8, 8)]
    assert found(first) == 0
    assert found(first) == (len(first) - 1) // size * size  # at least one token is computed
    assert found(first, "another caller") == 0
    parting = len(common) // size * size
    found([*common, VOCAB - 1, *ids(5, 5)])
    assert found([*common, VOCAB - 2, *ids(5, 6)]) == parting  # where the second one parted from the first
    turn = [*first, *expected(name, tuple(first)), 1]
    assert found(turn) > len(first)  # an answer is found too, with the next question
    hits = run.stepper.scheduler.prefix_hits
    assert hits > 2 * parting


@pytest.mark.parametrize("name", HAS_STATES)
def test_a_preempted_request_goes_on_from_its_last_snapshot(name: str) -> None:
    run = Run(stepper_of(name, None, chunking=False))
    request = make_request(ids(20, 1), SamplingParams(temperature=0.8, seed=3, max_tokens=30))
    run.add(request)
    while request.num_output < 29:
        run.step()
    run.stepper.scheduler.preempt(request)
    run.stepper.scheduler.schedule()
    assert request.num_computed == 48  # of 49 tokens


class NowAndThen(SpeculationController):
    """Drafts for two steps of five."""

    num_asked = 0

    def wants_drafts(self, num_seqs: int) -> bool:
        self.num_asked += 1
        return self.num_asked % 5 < 2


@pytest.mark.parametrize("name", FAMILIES)
def test_any_load(name: str) -> None:
    """Requests come, are aborted and preempted, with drafts now and then."""
    draw = random.Random(11)
    stepper = stepper_of(name, None, chunking=True, few_blocks=True)
    stepper.speculation = Speculation(Guesser(name), NUM_DRAFTS, NowAndThen())
    run, kept, others = Run(stepper), list[Request](), list[Request]()
    for step in range(60):
        if step % 3 == 0:
            group = kept if draw.random() < 0.7 else others
            group.append(make_request(draw.choice(prompts()), PARAMS))
            run.add(group[-1])
        living = [request for request in others if not request.is_finished]
        if living and draw.random() < 0.3:
            run.take([stepper.abort(draw.choice(living))])
        if stepper.scheduler.running and draw.random() < 0.1:
            stepper.scheduler.preempt(draw.choice(stepper.scheduler.running))
        run.step()
    done = run.until_done()
    for request in kept:
        assert done[request.id].token_ids == expected(name, tuple(request.prompt_ids))


@pytest.mark.parametrize(("name", "draft"), [("llama", "mamba2"), ("mamba", "llama"), ("mamba2", "mamba")])
def test_one_family_drafts_for_another(name: str, draft: str) -> None:
    stepper = stepper_of(name, drafter_of("a model", draft), chunking=True)
    done = outputs(stepper, [make_request(prompt, PARAMS) for prompt in prompts()])
    assert [one.token_ids for one in done] == [expected(name, tuple(prompt)) for prompt in prompts()]
    assert stepper.speculation is not None
    assert stepper.speculation.num_accepted < stepper.speculation.num_drafted > 20
