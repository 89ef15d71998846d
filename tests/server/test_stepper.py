"""The same tokens whatever happens on the way: preemption, chunks, found prefixes, speculation, company."""

import random
from itertools import product

import pytest
import torch
from driving import Run, make_request, make_stepper, outputs
from hash_model import HashModel
from naive import naive_logprobs, naive_output, values

from whet.models.step import Allocation
from whet.server.drafters import ModelDrafter, NgramDrafter
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.speculative import Speculation
from whet.server.stepper import Stepper

VOCAB = 12  # few, so that outputs repeat themselves and there is something to look up
SETTINGS = {
    "greedy": {"temperature": 0.0},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    "sampled": {"temperature": 0.7, "seed": 5},
    "truncated": {"temperature": 1.3, "top_k": 6, "top_p": 0.8, "min_p": 0.02, "seed": 6},
    "everything": {
        "temperature": 0.9,
        "seed": 7,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.4,
        "logit_bias": {3: 1.5, 4: -50.0},
        "min_tokens": 18,
        "stop_token_ids": (8, 9),
        "logprobs": 2,
        "prompt_logprobs": 1,
    },
}
# Drafts that were drawn from a model keep the distribution, not the tokens: test_speculative.py.
CASES = [*product(SETTINGS, ("off", "ngram")), ("greedy", "draft"), ("penalties", "draft")]
LOGPROBS = {"logprobs": 3, "prompt_logprobs": 2}


def prompts() -> list[list[int]]:
    draw = random.Random(3)
    shared = [draw.randrange(VOCAB) for _ in range(13)]
    own = [[draw.randrange(VOCAB) for _ in range(length)] for length in (1, 3, 8, 17, 26)]
    return [*own, shared + own[1], shared + own[2]]


def stepper_of(preemption: bool, chunking: bool, speculation: str, **changes: object) -> Stepper:
    made = {
        "off": lambda: None,
        "ngram": lambda: Speculation(NgramDrafter(), 3),
        "draft": lambda: Speculation(
            ModelDrafter(
                HashModel(vocab_size=VOCAB, seed=2, block_size=8),
                Allocation(num_blocks=40),
                num_rows=7,
                max_len=64,
                max_batch_tokens=16,
            ),
            3,
        ),
    }
    return make_stepper(
        HashModel(vocab_size=VOCAB),
        num_blocks=14 if preemption else 120,
        max_num_seqs=7,
        max_batch_tokens=9 if chunking else 200,
        speculation=made[speculation](),
        **changes,
    )


@pytest.mark.parametrize(("setting", "speculation"), CASES)
def test_equal_to_one_at_a_time(setting: str, speculation: str) -> None:
    params = SamplingParams(**{"max_tokens": 21, **LOGPROBS, **SETTINGS[setting]})
    model = HashModel(vocab_size=VOCAB)
    expected = [naive_output(model.logits_after, prompt, params) for prompt in prompts()]
    drafted = accepted = 0
    for preemption, chunking in product((False, True), repeat=2):
        stepper = stepper_of(preemption, chunking, speculation)
        requests = [make_request(prompt, params) for prompt in prompts()]
        done = outputs(stepper, requests)
        case = f"preemption {preemption}, chunking {chunking}"
        assert [one.token_ids for one in done] == expected, case
        assert (stepper.scheduler.num_preemptions > 0) is preemption, case
        assert stepper.scheduler.blocks.num_free == stepper.scheduler.blocks.num_blocks
        for request, one in zip(requests, done, strict=True):
            logprobs = naive_logprobs(model.logits_after, request.token_ids, 1)
            found = values(one.prompt_logprobs) + values(one.logprobs)
            assert found == pytest.approx(logprobs, rel=1e-3), case
            assert one.prompt_logprobs is not None
            assert one.prompt_logprobs[0] is None
            assert len(one.prompt_logprobs) == request.num_prompt
        if stepper.speculation is not None:
            drafted += stepper.speculation.num_drafted
            accepted += stepper.speculation.num_accepted
    if speculation != "off":
        assert 0 < accepted < drafted


def test_speculation_takes_fewer_steps() -> None:
    params = SamplingParams(temperature=0, max_tokens=40)
    steps = {}
    for kind in ("off", "ngram", "draft"):
        run = Run(stepper_of(preemption=False, chunking=False, speculation=kind))
        run.add(make_request([1, 2, 3], params))
        (done,) = run.until_done().values()
        assert len(done.token_ids) == 40  # never more than asked for
        steps[kind] = run.num_steps
    assert steps["ngram"] < 0.9 * steps["off"]
    assert steps["draft"] < 0.7 * steps["off"]


def test_chunks_bound_every_step() -> None:
    run = Run(stepper_of(preemption=False, chunking=True, speculation="off"))
    run.add(make_request([1, 2, 3, 4] * 10, SamplingParams(temperature=0, max_tokens=3)))
    model = run.stepper.model
    assert isinstance(model, HashModel)
    run.until_done()
    assert run.num_steps == 7  # 40 tokens in chunks of 9, the last of which gives a token; then two more
    assert model.num_tokens == 42


@pytest.mark.parametrize("chunking", [False, True])
def test_requests_that_come_and_go_change_nothing(chunking: bool) -> None:
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=25)
    model, draw = HashModel(vocab_size=VOCAB), random.Random(9)
    run = Run(stepper_of(preemption=True, chunking=chunking, speculation="ngram"))
    kept: list[Request] = []
    others: list[Request] = []
    for step in range(60):
        if step % 3 == 0:
            prompt = [draw.randrange(VOCAB) for _ in range(draw.randrange(1, 30))]
            group = kept if draw.random() < 0.6 else others
            group.append(make_request(prompt, params))
            run.add(group[-1])
        living = [request for request in others if not request.is_finished]
        if living and draw.random() < 0.3:
            run.take([run.stepper.abort(draw.choice(living))])
        run.step()
    done = run.until_done()
    assert len(kept) > 8
    for request in kept:
        assert done[request.id].token_ids == naive_output(model.logits_after, request.prompt_ids, params)
    assert {done[request.id].finish_reason for request in others} >= {"abort"}


def test_a_long_prompt_alone_uses_the_whole_budget_and_shares_it_by_time() -> None:
    """Beside an output that goes on, a chunk is as large as the steps' time allows."""
    stepper = make_stepper(HashModel(max_model_len=2000), num_blocks=500, max_batch_tokens=200, max_step_ms=50)
    alone = stepper.scheduler.schedule  # no running output: no limit but the budget
    request = make_request([1] * 600, SamplingParams(temperature=0, max_tokens=2))
    stepper.scheduler.add(request)
    assert alone().num_tokens == [200]
    stepper.scheduler.finish(request, "abort")
    stepper.scheduler.cost.observe(200, 200, 200.0)  # a millisecond a token
    talking = make_request([1, 2], SamplingParams(temperature=0, max_tokens=50))
    run = Run(stepper)
    run.add(talking)
    run.step()
    run.add(make_request([1] * 600, SamplingParams(temperature=0, max_tokens=2)))
    plan = stepper.scheduler.schedule()
    assert plan.requests[0] is talking
    assert plan.num_tokens == [1, 49]


def test_a_request_that_cannot_grow_alone_ends_with_an_error() -> None:
    stepper = make_stepper(HashModel(), num_blocks=5)
    (done,) = outputs(stepper, [make_request([1] * 10, SamplingParams(temperature=0, max_tokens=40))])
    assert done.finish_reason == "error"
    assert len(done.token_ids) == 11  # 20 tokens have room; the one after the last of them is known too
    assert "the cache holds 20 tokens" in (done.error or "")
    (done,) = outputs(stepper, [make_request([1] * 30, SamplingParams(temperature=0, max_tokens=1))])
    assert (done.finish_reason, done.token_ids) == ("error", [])


def test_a_step_that_raises_ends_its_requests_and_no_others() -> None:
    stepper = make_stepper(HashModel(fail_at=[2]), max_num_seqs=2, prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=5)
    done = outputs(stepper, [make_request([i, 1], params) for i in range(3)])
    assert [one.finish_reason for one in done] == ["error", "error", "length"]
    assert done[0].error == "the step failed: RuntimeError: the model broke"
    assert len(done[0].token_ids) == 1
    assert done[2].token_ids == naive_output(HashModel().logits_after, [2, 1], params)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_one_request(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=5, ignore_eos=True)
    stepper = make_stepper(HashModel(nan_after=[7]))
    done = outputs(stepper, [make_request([1, 7], params), make_request([1, 2], params)])
    assert (done[0].finish_reason, done[0].token_ids) == ("error", [])
    assert "NaN" in (done[0].error or "")
    assert done[1].finish_reason != "error" or 7 in done[1].token_ids


def test_only_the_prompt() -> None:
    """max_tokens 0: for its logprobs, as clients that echo ask."""
    model, prompt = HashModel(), [4, 5, 6, 7, 8, 9]
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    (done,) = outputs(make_stepper(model), [make_request(prompt, params)])
    assert (done.finish_reason, done.token_ids, done.text) == ("length", [], "")
    assert values(done.prompt_logprobs) == pytest.approx(naive_logprobs(model.logits_after, prompt, 1), rel=1e-3)


def test_the_best_of_the_top_is_the_greedy_token_bit_for_bit() -> None:
    params = SamplingParams(temperature=0, max_tokens=10, logprobs=1)
    (done,) = outputs(make_stepper(HashModel()), [make_request([1, 2, 3], params)])
    assert done.logprobs is not None
    for token_id, entry in zip(done.token_ids, done.logprobs, strict=True):
        assert entry.top == ((token_id, entry.logprob),)
    echoed = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=1)
    (again,) = outputs(make_stepper(HashModel()), [make_request([1, 2, 3, *done.token_ids], echoed)])
    assert again.prompt_logprobs is not None
    assert again.prompt_logprobs[3:] == done.logprobs


def test_times_of_a_request() -> None:
    stepper = make_stepper(HashModel(), max_num_seqs=1)
    first, second = (make_request([1], SamplingParams(temperature=0, max_tokens=3)) for _ in range(2))
    done = outputs(stepper, [first, second])
    assert 0 < done[0].queue_s < (done[0].ttft_s or 0) < done[0].e2e_s
    assert done[1].queue_s > done[0].queue_s


def test_a_drafter_that_raises_is_turned_off() -> None:
    class Broken:
        def propose(self, requests: list[Request], num_drafts: list[int]) -> bool:
            requests[0].drafts = [1, 2]
            raise RuntimeError("no")

    params = SamplingParams(temperature=0, max_tokens=9)
    stepper = make_stepper(HashModel(), speculation=Speculation(Broken(), 2))
    (done,) = outputs(stepper, [make_request([1, 2], params)])
    assert done.token_ids == naive_output(HashModel().logits_after, [1, 2], params)
    assert stepper.speculation is None


def test_logits_of_the_fake_are_the_same_either_way() -> None:
    """Else the tests above prove nothing."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=40)
    (done,) = outputs(make_stepper(HashModel()), [make_request([3, 1, 4, 1, 5, 9, 2, 6], params)])
    assert done.logprobs is not None
    found = dict(done.logprobs[0].top)
    expected = HashModel().logits_after([3, 1, 4, 1, 5, 9, 2, 6]).log_softmax(0)
    torch.testing.assert_close(torch.tensor([found[i] for i in range(40)]), expected)
    assert HashModel().logits_after([1, 3, 4])[0] != HashModel().logits_after([3, 1, 4])[0]
